package store

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// providers look for credentials in several places, in order. If there are none, they return an
// error that says why, unlike the Chain of the library.
type providers struct {
	places []place
	found  credentials.Provider // place that had credentials last; nil if none had any
}

type place struct {
	name string
	credentials.Provider
}

func newProviders() *providers {
	// Outside a cloud, no server responds at the address that supplies credentials for the
	// machine's role.
	quick := http.DefaultTransport.(*http.Transport).Clone()
	quick.DialContext = (&net.Dialer{Timeout: time.Second}).DialContext
	return &providers{places: []place{
		{"the environment", &credentials.EnvAWS{}},
		{"~/.aws", &credentials.FileAWSCredentials{}},
		// web identities, containers and machines
		{"the machine's role", &credentials.IAM{Client: &http.Client{Transport: quick, Timeout: 5 * time.Second}}},
	}}
}

const noCredentials = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (for gs://, an HMAC key), or write ~/.aws/credentials; " +
	"for a bucket that everybody may read, say store.anonymous = true"

func (p *providers) RetrieveWithCredContext(c *credentials.CredContext) (credentials.Value, error) {
	text := noCredentials
	for _, place := range p.places {
		v, err := place.RetrieveWithCredContext(c)
		// Secrets that are read from files often end in a newline.
		for _, secret := range []*string{&v.AccessKeyID, &v.SecretAccessKey, &v.SessionToken} {
			*secret = strings.TrimSpace(*secret)
		}
		if v.AccessKeyID != "" && v.SecretAccessKey != "" {
			p.found = place
			return v, nil
		}
		if err == nil && (v.AccessKeyID != "" || v.SecretAccessKey != "") {
			err = errors.New("only one of the two is set")
		}
		if err != nil {
			text += "; " + place.name + ": " + reason(err)
		}
	}
	// Not a wrapped error: fs.ErrNotExist would say that there is no object.
	err := errors.New(text)
	if p.found == nil {
		err = permanent{err}
	}
	return credentials.Value{}, err
}

// Retrieve implements [credentials.Provider].
func (p *providers) Retrieve() (credentials.Value, error) { return p.RetrieveWithCredContext(nil) }

// IsExpired implements [credentials.Provider].
func (p *providers) IsExpired() bool { return p.found == nil || p.found.IsExpired() }

// reason returns the text of an error about credentials, without what may be a secret.
func reason(err error) string {
	var request *url.Error
	switch {
	case errors.As(err, &request):
		err = request.Err
	case strings.Contains(err.Error(), "delimiter"): // it has a line of the file
		return "a line is not of the form key = value"
	}
	return err.Error()
}
