package store

import (
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// sources are where credentials are looked for, in this order. The library's own chain would go on without any, and say nothing.
type sources struct {
	all  []credentials.Provider
	last credentials.Provider // that had some
}

func newSources() *sources {
	// Elsewhere than in a cloud nobody answers at the address of a machine's role.
	quick := http.DefaultTransport.(*http.Transport).Clone()
	quick.DialContext = (&net.Dialer{Timeout: time.Second}).DialContext
	return &sources{all: []credentials.Provider{
		&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{},
		// web identity, container, machine
		&credentials.IAM{Client: &http.Client{Transport: quick, Timeout: 5 * time.Second}},
	}}
}

var errNoCredentials = errors.New("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials; " +
	"for a bucket that everybody may read, say store.anonymous = true")

func (s *sources) Retrieve() (credentials.Value, error) { return s.RetrieveWithCredContext(nil) }

func (s *sources) RetrieveWithCredContext(c *credentials.CredContext) (credentials.Value, error) {
	for _, source := range s.all {
		if v, err := source.RetrieveWithCredContext(c); err == nil && v.AccessKeyID != "" {
			s.last = source
			return v, nil
		}
	}
	return credentials.Value{}, permanent{errNoCredentials}
}

func (s *sources) IsExpired() bool { return s.last == nil || s.last.IsExpired() }
