#include "switchml_mpi.h"

/* MPI_MAX and MPI_MIN of unsigned and of 64-bit numbers are left to MPI, like all types and
 * operators that are not here. */
static bool dtype_of(MPI_Datatype type, bool is_sum, struct reduction *reduction)
{
    if (type == MPI_FLOAT) {
        reduction->dtype = SWITCHML_F32;
        reduction->size = 4;
        return true;
    }
    if (type == MPI_DOUBLE) {
        reduction->dtype = SWITCHML_F64;
        reduction->size = 8;
        return is_sum;
    }
    if (type == MPI_INT || type == MPI_INT32_T) {
        reduction->dtype = SWITCHML_I32;
        reduction->size = 4;
        return true;
    }
    /* A sum that wraps around has the same bits for signed and unsigned numbers. */
    if (type == MPI_UNSIGNED || type == MPI_UINT32_T) {
        reduction->dtype = SWITCHML_I32;
        reduction->size = 4;
        return is_sum;
    }
    return false;
}

bool reduction_of(MPI_Datatype type, MPI_Op op, struct reduction *reduction)
{
    if (op == MPI_SUM)
        reduction->op = SWITCHML_SUM;
    else if (op == MPI_MAX)
        reduction->op = SWITCHML_MAX;
    else if (op == MPI_MIN)
        reduction->op = SWITCHML_MIN;
    else
        return false;
    return dtype_of(type, op == MPI_SUM, reduction);
}
