/* storm PATH B T STEPS
 *
 * Opens a `next` of uint32 tokens once and reads it until standard input ends. It checks and prints the
 * same as storm.py, and can be sent the same signals; a read that one interrupts counts as failed. A
 * batch is x and then y, each with B rows of T tokens; an epoch has STEPS batches.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void ignore(int signal)
{
	(void)signal;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: storm PATH B T STEPS\n");
		return 1;
	}
	size_t n = strtoull(argv[2], NULL, 10) * strtoull(argv[3], NULL, 10);
	size_t places = strtoull(argv[4], NULL, 10);
	uint32_t *batch = malloc(2 * n * sizeof *batch);
	long *numbers = calloc(places, sizeof *numbers), failed = 0, reads = 0;
	struct pollfd in = {.fd = 0, .events = POLLIN};
	struct sigaction action = {.sa_handler = ignore}; /* unlike SIG_IGN, it interrupts system calls */
	double slowest = 0;
	int fd = open(argv[1], O_RDONLY), why = 0;

	if (!batch || !numbers || fd < 0) {
		perror(argv[1]);
		return 1;
	}
	sigaction(SIGURG, &action, NULL);
	sigaction(SIGPROF, &action, NULL);
	printf("ready\n");
	fflush(stdout);
	for (; poll(&in, 1, 0) <= 0; reads++) { /* a signal may interrupt poll */
		double began = now();
		ssize_t got = pread(fd, batch, 2 * n * sizeof *batch, 0);

		if (now() - began > slowest)
			slowest = now() - began;
		if (got < 0) {
			why = errno;
			failed++;
			/* The file or the mount may have been replaced. */
			int again = open(argv[1], O_RDONLY);

			if (again >= 0) {
				close(fd);
				fd = again;
			}
			usleep(1000);
			continue;
		}
		uint32_t place = batch[0] % (1 << 24) / (uint32_t)n;

		for (size_t i = 0; i < n; i++) {
			if (got != (ssize_t)(2 * n * sizeof *batch) || place >= places || batch[0] % n ||
			    batch[i] != batch[0] + i || batch[n + i] != batch[i] + 1) {
				fprintf(stderr, "wrong bytes: %zd, %" PRIu32 " at %zu, which begins with %" PRIu32 "\n", got, batch[i], i, batch[0]);
				return 1;
			}
		}
		numbers[place]++;
	}
	for (size_t i = 0; i < places; i++)
		if (numbers[i])
			printf("number %zu %ld\n", i, numbers[i]);
	if (failed)
		printf("failed %s %ld\n", why == EIO ? "EIO" : why == EINTR ? "EINTR" : why == ENOTCONN ? "ENOTCONN" : why == ESTALE ? "ESTALE" : "other", failed);
	printf("slowest %.6f\nreads %ld\n", slowest, reads);
	return 0;
}
