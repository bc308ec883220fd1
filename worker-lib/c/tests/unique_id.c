/*
 * Ranks without an aggregator, which find each other by a unique id. The program hands it round, as
 * others do by MPI: here in a file, the argument.
 */
#include "switchml.h"

#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 100000 };

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, switchml_error_message());
    return EXIT_FAILURE;
}

/* Rank 0 writes the id to another name first, so that the others find all of it or nothing. */
static int give(const char *path, uint8_t *id)
{
    char part[4096];
    FILE *file;
    if (switchml_unique_id(id) != SWITCHML_OK)
        return failed("unique_id");
    snprintf(part, sizeof part, "%s.part", path);
    file = fopen(part, "wb");
    if (file == NULL || fwrite(id, SWITCHML_UNIQUE_ID_BYTES, 1, file) != 1 || fclose(file) != 0 ||
        rename(part, path) != 0) {
        perror(path);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

static int take(const char *path, uint8_t *id)
{
    FILE *file = NULL;
    while (file == NULL)
        file = fopen(path, "rb");
    if (fread(id, SWITCHML_UNIQUE_ID_BYTES, 1, file) != 1)
        return EXIT_FAILURE;
    return fclose(file);
}

int main(int count, char **arguments)
{
    static float values[COUNT];
    uint8_t id[SWITCHML_UNIQUE_ID_BYTES];
    switchml_settings settings = { .size = sizeof settings };
    switchml_communicator *communicator;
    if (count != 2)
        return EXIT_FAILURE;
    if (atoi(getenv("RANK")) == 0 ? give(arguments[1], id) : take(arguments[1], id))
        return EXIT_FAILURE;
    settings.unique_id = id;
    if (switchml_connect(&settings, &communicator) != SWITCHML_OK)
        return failed("connect");
    for (size_t i = 0; i < COUNT; i++)
        values[i] = (float)switchml_rank(communicator) + (float)i;
    if (switchml_all_reduce(communicator, values, COUNT, SWITCHML_F32, SWITCHML_SUM) != SWITCHML_OK)
        return failed("all_reduce");
    /* Of three ranks: 0 + 1 + 2, and three times i. */
    for (size_t i = 0; i < COUNT; i++) {
        if (values[i] != 3 + 3 * (float)i) {
            fprintf(stderr, "element %zu is %g\n", i, values[i]);
            return EXIT_FAILURE;
        }
    }
    return switchml_close(communicator) == SWITCHML_OK ? EXIT_SUCCESS : failed("close");
}
