package store

import (
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// providers are where credentials are looked for, in this order. The library's own chain would go on without any, and say nothing.
type providers struct {
	all  []credentials.Provider
	last credentials.Provider // that had some
}

func newProviders() *providers {
	// Outside a cloud, no server answers at the address of a machine's role.
	quick := http.DefaultTransport.(*http.Transport).Clone()
	quick.DialContext = (&net.Dialer{Timeout: time.Second}).DialContext
	return &providers{all: []credentials.Provider{
		&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{},
		// web identity, container, machine
		&credentials.IAM{Client: &http.Client{Transport: quick, Timeout: 5 * time.Second}},
	}}
}

var errNoCredentials = errors.New("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials; " +
	"for a bucket that everybody may read, say store.anonymous = true")

func (p *providers) Retrieve() (credentials.Value, error) { return p.RetrieveWithCredContext(nil) }

func (p *providers) RetrieveWithCredContext(c *credentials.CredContext) (credentials.Value, error) {
	for _, provider := range p.all {
		if v, err := provider.RetrieveWithCredContext(c); err == nil && v.AccessKeyID != "" {
			p.last = provider
			return v, nil
		}
	}
	return credentials.Value{}, permanent{errNoCredentials}
}

func (p *providers) IsExpired() bool { return p.last == nil || p.last.IsExpired() }
