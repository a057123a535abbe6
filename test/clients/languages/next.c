/* next WAY PATH N SIZE: reads PATH N times with C's stdio and prints what it got. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *path;
static size_t size;
static char *batch;

static void failed(void) {
    perror(path);
    exit(1);
}

static FILE *opened(void) {
    FILE *f = fopen(path, "rb");
    if (!f)
        failed();
    return f;
}

static void whole(FILE *f) {
    if (fread(batch, 1, size, f) != size)
        failed();
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    const char *way = argv[1];
    path = argv[2];
    size = strtoul(argv[4], NULL, 10);
    batch = calloc(1, size);
    FILE *kept = NULL;
    for (int n = atoi(argv[3]); n > 0; n--) {
        if (!strcmp(way, "rewind") || !strcmp(way, "unbuffered")) {
            if (!kept) {
                kept = opened();
                if (!strcmp(way, "unbuffered"))
                    setvbuf(kept, NULL, _IONBF, 0);
            }
            rewind(kept);
            whole(kept);
        } else {
            FILE *f = opened();
            if (!strcmp(way, "fread")) {
                whole(f);
            } else if (!strcmp(way, "halves")) {
                if (fread(batch, size / 2, 1, f) != 1 || fread(batch + size / 2, size / 2, 1, f) != 1)
                    failed();
            } else if (!strcmp(way, "sized")) { /* finds the size as np.fromfile does */
                if (fseek(f, 0, SEEK_END) || ftell(f) != (long)size || fseek(f, 0, SEEK_SET))
                    failed();
                whole(f);
            } else if (!strcmp(way, "getc")) {
                for (size_t i = 0; i < size; i++) {
                    int c = getc(f);
                    if (c == EOF)
                        failed();
                    batch[i] = c;
                }
            } else {
                return 2;
            }
            fclose(f);
        }
        if (fwrite(batch, 1, size, stdout) != size)
            return 1;
    }
    return fclose(stdout) != 0;
}
