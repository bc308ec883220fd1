// An entry for each rank that may have its bit in a register of 32: IN_ALREADY says which.

#define ANY_IN_ALREADY(pass, again)                                              \
    IN_ALREADY(pass, 0, again)                                                   \
    IN_ALREADY(pass, 1, again)                                                   \
    IN_ALREADY(pass, 2, again)                                                   \
    IN_ALREADY(pass, 3, again)                                                   \
    IN_ALREADY(pass, 4, again)                                                   \
    IN_ALREADY(pass, 5, again)                                                   \
    IN_ALREADY(pass, 6, again)                                                   \
    IN_ALREADY(pass, 7, again)                                                   \
    IN_ALREADY(pass, 8, again)                                                   \
    IN_ALREADY(pass, 9, again)                                                   \
    IN_ALREADY(pass, 10, again)                                                  \
    IN_ALREADY(pass, 11, again)                                                  \
    IN_ALREADY(pass, 12, again)                                                  \
    IN_ALREADY(pass, 13, again)                                                  \
    IN_ALREADY(pass, 14, again)                                                  \
    IN_ALREADY(pass, 15, again)                                                  \
    IN_ALREADY(pass, 16, again)                                                  \
    IN_ALREADY(pass, 17, again)                                                  \
    IN_ALREADY(pass, 18, again)                                                  \
    IN_ALREADY(pass, 19, again)                                                  \
    IN_ALREADY(pass, 20, again)                                                  \
    IN_ALREADY(pass, 21, again)                                                  \
    IN_ALREADY(pass, 22, again)                                                  \
    IN_ALREADY(pass, 23, again)                                                  \
    IN_ALREADY(pass, 24, again)                                                  \
    IN_ALREADY(pass, 25, again)                                                  \
    IN_ALREADY(pass, 26, again)                                                  \
    IN_ALREADY(pass, 27, again)                                                  \
    IN_ALREADY(pass, 28, again)                                                  \
    IN_ALREADY(pass, 29, again)                                                  \
    IN_ALREADY(pass, 30, again)                                                  \
    IN_ALREADY(pass, 31, again)
