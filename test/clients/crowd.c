/* crowd N BYTES PATH...
 *
 * N threads open and read the paths in turn, the first BYTES of each with one pread(2), again and again, until standard input ends. The
 * buffers are never touched, so the threads take little memory. Prints "<reads> <failed>" then. A thread that got an error goes on.
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
static atomic_int started, over;

static void *reads(void *arg)
{
	/* One buffer for all: what it holds does not matter. */
	char *buf = arg;
	int n = atomic_fetch_add(&started, 1);

	while (!over) {
		int fd = open(paths[n % npaths], O_RDONLY);
		ssize_t got = fd < 0 ? -1 : pread(fd, buf, bytes, 0);

		atomic_fetch_add(got == (ssize_t)bytes ? &nreads : &nfailed, 1);
		if (fd >= 0)
			close(fd);
	}
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
			perror("pthread_create");
			return 1;
		}
	}
	printf("%d threads\n", n);
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	over = 1;
	for (i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	printf("%ld %ld\n", nreads, nfailed);
	return 0;
}
