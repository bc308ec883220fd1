/*
 * Ranks without an aggregator, which find each other by a unique id. The program hands it round, as
 * others do by MPI: here in a file, the argument. SIGPIPE ends a program of C that does not ignore
 * it, so the library's threads that write to connections must not get it.
 */
#include "switchml.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* 1 if the thread of this file, such as /proc/self/task/1/status, blocks SIGPIPE. */
static int blocks_sigpipe(const char *path, const char **name)
{
    static char thread[64];
    char line[256];
    unsigned long long blocked = 0;
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "Name: %63s", thread);
        sscanf(line, "SigBlk: %llx", &blocked);
    }
    if (file != NULL)
        fclose(file);
    *name = thread;
    return (int)(blocked >> (SIGPIPE - 1) & 1);
}

/* Threads for connections that block it: of the control plane, and of the rank's aggregator. */
static int safe_threads(void)
{
    glob_t threads;
    int safe = 0;
    if (glob("/proc/self/task/[0-9]*/status", 0, NULL, &threads) != 0)
        return 0;
    for (size_t i = 0; i < threads.gl_pathc; i++) {
        const char *name;
        int blocks = blocks_sigpipe(threads.gl_pathv[i], &name);
        if (strcmp(name, "switchml-contro") == 0 || strcmp(name, "switchml-aggr") == 0)
            safe += blocks;
    }
    globfree(&threads);
    return safe;
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
    if (safe_threads() != 2) {
        fprintf(stderr, "%d threads for connections block SIGPIPE, not 2\n", safe_threads());
        return EXIT_FAILURE;
    }
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
