package localfile

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			interrupted int
			then, want  error
			most        time.Duration
		}{
			{0, nil, nil, 0},
			{0, unix.ENOENT, unix.ENOENT, 0},
			{5, nil, nil, time.Millisecond},
			{5, unix.ENOENT, unix.ENOENT, time.Millisecond},
			{1 << 30, nil, unix.EINTR, retryLimit + time.Second},
		} {
			calls, began := 0, time.Now()
			err := Retry(func() error {
				if calls++; calls <= test.interrupted {
					return unix.EINTR
				}
				return test.then
			})
			if took := time.Since(began); !errors.Is(err, test.want) || took > test.most {
				t.Errorf("after %d interruptions, %v in %v, want %v in %v", test.interrupted, err, took, test.want, test.most)
			}
		}
	})
}
