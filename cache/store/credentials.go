package store

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// providers look for credentials in several places, in order. If there are none, they return an
// error, unlike the Chain of the library.
type providers struct{ credentials.Chain }

func newProviders() *providers {
	// Outside a cloud, no server responds at the address that supplies credentials for the
	// machine's role.
	quick := http.DefaultTransport.(*http.Transport).Clone()
	quick.DialContext = (&net.Dialer{Timeout: time.Second}).DialContext
	return &providers{credentials.Chain{Providers: []credentials.Provider{
		&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{},
		// web identities, containers and machines
		&credentials.IAM{Client: &http.Client{Transport: quick, Timeout: 5 * time.Second}},
	}}}
}

var errNoCredentials = errors.New("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials; " +
	"for a bucket that everybody may read, say store.anonymous = true")

func (p *providers) RetrieveWithCredContext(c *credentials.CredContext) (credentials.Value, error) {
	v, err := p.Chain.RetrieveWithCredContext(c)
	// Secrets that are read from files often end in a newline.
	for _, text := range []*string{&v.AccessKeyID, &v.SecretAccessKey, &v.SessionToken} {
		*text = strings.TrimSpace(*text)
	}
	if err == nil && (v.AccessKeyID == "" || v.SecretAccessKey == "") {
		err = errNoCredentials
		if why := profileError(c); why != nil {
			// Not %w: fs.ErrNotExist would say that there is no object.
			err = fmt.Errorf("%w; ~/.aws has none: %v", err, why)
		}
		err = permanent{err}
	}
	return v, err
}

// profileError returns why ~/.aws cannot be used.
func profileError(c *credentials.CredContext) error {
	_, err := new(credentials.FileAWSCredentials).RetrieveWithCredContext(c)
	if err != nil && strings.Contains(err.Error(), "delimiter") {
		// The error has the line, which may be a secret.
		return errors.New("a line is not of the form key = value")
	}
	return err
}
