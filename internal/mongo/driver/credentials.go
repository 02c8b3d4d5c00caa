package driver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/oplogrep/replicator/internal/filestamp"
)

// credentials are what the connections of a Set have at the time when they are made: a login, a client certificate, or
// both. Where they are in files, these are read again once one of them has changed, so that a link outlasts a password
// and a certificate. If the new ones cannot be used the last ones remain.
type credentials struct {
	opts   *Options
	http   *http.Client // for logins that ask elsewhere
	source string       // the login's database; for mongodb+srv, DNS may have named it

	mu          sync.Mutex           // guards the rest
	login       driver.Authenticator // nil without one
	certificate *tls.Certificate     // nil without one
	of          [2]filestamp.Stamp
	fault       error // why the files, as they are now, cannot be used
}

// newCredentials returns those that the driver's options have, and makes the options use them from then on.
func newCredentials(o *Options, client *options.ClientOptions) (*credentials, error) {
	c := &credentials{opts: o, http: client.HTTPClient, of: o.read}
	if client.Auth != nil {
		c.source = client.Auth.AuthSource
	}
	if err := c.take(client); err != nil {
		return nil, shield(err, o.uri.secrets())
	}
	if c.certificate != nil {
		client.TLSConfig.Certificates, client.TLSConfig.GetClientCertificate = nil, c.clientCertificate
	}
	return c, nil
}

// take uses what some options have from now on.
func (c *credentials) take(client *options.ClientOptions) error {
	var login driver.Authenticator
	if client.Auth != nil {
		var err error
		if login, err = auth.CreateAuthenticator(client.Auth.AuthMechanism, topology.ConvertCreds(client.Auth), c.http); err != nil {
			return fmt.Errorf("prepare the login: %w", err)
		}
	}
	c.login, c.certificate = login, nil
	if t := client.TLSConfig; t != nil && len(t.Certificates) > 0 {
		c.certificate = &t.Certificates[0]
	}
	return nil
}

// refresh reads the files again if one of them has changed, or if they could not be used: it may have been for another
// file, or for the owner of one. The caller has mu.
func (c *credentials) refresh() {
	of := c.opts.stamps()
	if of == c.of && c.fault == nil {
		return
	}
	c.of = of
	c.fault = c.read()
}

func (c *credentials) read() error {
	o, err := Parse(c.opts.config)
	if err != nil {
		return err
	}
	// Without the hosts' name of mongodb+srv, which would be looked up.
	client := options.Client().ApplyURI(o.uri.direct().text(false))
	if err = client.Validate(); err == nil {
		if client.Auth != nil {
			client.Auth.AuthSource = c.source
		}
		err = c.take(client)
	}
	if err != nil {
		return shield(err, o.uri.secrets())
	}
	return nil
}

// current returns the login, and why the files, as they are now, cannot be used.
func (c *credentials) current() (login driver.Authenticator, fault error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh()
	return c.login, c.fault
}

// clientCertificate is the GetClientCertificate of a tls.Config.
func (c *credentials) clientCertificate(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh()
	if c.certificate == nil || request.SupportsCertificate(c.certificate) != nil {
		return new(tls.Certificate), nil // as crypto/tls does without one that fits
	}
	return c.certificate, nil
}

// Auth implements driver.Authenticator.
func (c *credentials) Auth(ctx context.Context, cfg *driver.AuthConfig) error {
	login, fault := c.current()
	return because(login.Auth(ctx, cfg), fault)
}

// Reauth implements driver.Authenticator.
func (c *credentials) Reauth(ctx context.Context, cfg *driver.AuthConfig) error {
	login, fault := c.current()
	return because(login.Reauth(ctx, cfg), fault)
}

// CreateSpeculativeConversation implements auth.SpeculativeAuthenticator. It returns nil where the login is to be done by
// Auth.
func (c *credentials) CreateSpeculativeConversation() (auth.SpeculativeConversation, error) {
	login, fault := c.current()
	if early, ok := login.(auth.SpeculativeAuthenticator); ok && fault == nil {
		return early.CreateSpeculativeConversation()
	}
	return nil, nil
}

// because adds to the error of a login why the newest credentials were not used.
func because(err, fault error) error {
	if err == nil || fault == nil {
		return err
	}
	return fmt.Errorf("%w (the files of the login have changed, and cannot be used: %w)", err, fault)
}
