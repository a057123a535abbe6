/* crowd N BYTES PATH...
 *
 * Starts N threads. Each opens one of the paths and reads its first BYTES with pread(2) until standard
 * input ends; after each read it drops the file from the page cache. Prints "ready" when all files are
 * open, and "<reads> <failed>" at the end. A thread continues after an error.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char **paths;
static int npaths;
static size_t bytes;
static atomic_long nreads, nfailed;
static atomic_int started, opened, over;

static void *reads(void *arg)
{
	/* All threads share a buffer, because its content is not used. */
	char *buf = arg;
	int fd = open(paths[atomic_fetch_add(&started, 1) % npaths], O_RDONLY);

	if (fd < 0) {
		perror("open");
		exit(1);
	}
	atomic_fetch_add(&opened, 1);
	while (!over) {
		ssize_t got = pread(fd, buf, bytes, 0);

		atomic_fetch_add(got == (ssize_t)bytes ? &nreads : &nfailed, 1);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
	close(fd);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_attr_t small;
	pthread_t *threads;
	char *buf, c;
	int i, n;

	if (argc < 4) {
		fprintf(stderr, "usage: crowd N BYTES PATH...\n");
		return 2;
	}
	n = atoi(argv[1]);
	bytes = strtoull(argv[2], NULL, 10);
	paths = argv + 3;
	npaths = argc - 3;
	threads = calloc(n, sizeof *threads);
	buf = malloc(bytes);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (i = 0; i < n; i++) {
		if (pthread_create(&threads[i], &small, reads, buf)) {
			fprintf(stderr, "pthread_create: thread %d\n", i);
			return 1;
		}
	}
	while (opened < n)
		usleep(1000);
	puts("ready");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	over = 1;
	for (i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	printf("%ld %ld\n", nreads, nfailed);
	return 0;
}
