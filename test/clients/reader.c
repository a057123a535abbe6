/* reader PATH opens|looks N
 *
 * opens: opens and closes PATH N times. looks: looks up N missing names in the directory PATH. The names
 * contain the process ID, because the kernel caches the names of earlier runs.
 *
 * reader PATH CHUNK MISALIGN [PASSES]
 *
 * Reads PATH PASSES times (default 1) through one descriptor. Each pread(2) reads CHUNK bytes (0: the
 * rest of the file) into memory that begins MISALIGN bytes after a page boundary. Prints
 * `<bytes> <FNV-1a 64 of the content>` per pass. Exits with 1 if a call fails or the size is not st_size.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t fnv1a(const unsigned char *p, size_t n)
{
	uint64_t h = 0xcbf29ce484222325u;

	while (n--)
		h = (h ^ *p++) * 0x100000001b3u;
	return h;
}

/* Reads until the end of the file, or until it has more than size bytes, and returns their number. */
static size_t read_all(int fd, unsigned char *buf, size_t size, size_t chunk)
{
	size_t total = 0;

	while (total <= size) {
		size_t left = size - total;
		/* At st_size, asks for one more byte, to see that the file ends there. */
		size_t want = chunk ? chunk : left ? left : 1;
		ssize_t n = pread(fd, buf + total, want, (off_t)total);

		if (n < 0)
			die("pread");
		if (n == 0)
			break;
		total += (size_t)n;
	}
	return total;
}

static int many(const char *path, const char *what, long n)
{
	char name[4096];
	struct stat st;

	for (long i = 0; i < n; i++) {
		if (what[0] == 'o') {
			int fd = open(path, O_RDONLY);

			if (fd < 0)
				die(path);
			close(fd);
			continue;
		}
		snprintf(name, sizeof name, "%s/absent-%d-%ld", path, (int)getpid(), i);
		if (stat(name, &st) == 0 || errno != ENOENT)
			die(name);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && (!strcmp(argv[2], "opens") || !strcmp(argv[2], "looks")))
		return many(argv[1], argv[2], strtol(argv[3], NULL, 10));
	if (argc < 4 || argc > 5) {
		fprintf(stderr, "usage: reader PATH CHUNK MISALIGN [PASSES]\n       reader PATH opens|looks N\n");
		return 1;
	}
	size_t chunk = strtoull(argv[2], NULL, 10);
	size_t misalign = strtoull(argv[3], NULL, 10);
	long passes = argc == 5 ? strtol(argv[4], NULL, 10) : 1;

	int fd = open(argv[1], O_RDONLY);
	if (fd < 0)
		die(argv[1]);
	struct stat st;
	if (fstat(fd, &st) < 0)
		die("fstat");
	size_t size = (size_t)st.st_size;

	/* The last call may request a whole chunk at st_size. */
	void *page;
	if (posix_memalign(&page, (size_t)sysconf(_SC_PAGESIZE), misalign + size + (chunk ? chunk : 1))) {
		fprintf(stderr, "posix_memalign: out of memory\n");
		return 1;
	}
	unsigned char *buf = (unsigned char *)page + misalign;

	for (long i = 0; i < passes; i++) {
		size_t total = read_all(fd, buf, size, chunk);

		if (total != size) {
			fprintf(stderr, "%s: read %zu bytes, st_size is %zu\n", argv[1], total, size);
			return 1;
		}
		printf("%zu %016" PRIx64 "\n", total, fnv1a(buf, total));
		fflush(stdout);
	}
	free(page);
	close(fd);
	return 0;
}
