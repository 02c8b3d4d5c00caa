package driver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/ocsp"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/oplogrep/replicator/internal/mongo"
)

// ErrClosed is the Err of the LostError of a call to a closed Set.
var ErrClosed = errors.New("the connection was closed by this process")

// AuthError reports that authentication failed, or that one side did not accept the
// other's certificate. It is the Err of a [mongo.LostError], because no command was sent;
// a retry is pointless until the configuration changes.
type AuthError struct {
	// Host is the server.
	Host string
	// Err is the error of the server, or of the TLS library.
	Err error
}

func (e *AuthError) Error() string {
	what := "log in to"
	if tlsFault(e.Err) {
		what = "agree on TLS with"
	}
	return fmt.Sprintf("%s %s: %v", what, e.Host, e.Err)
}

// Unwrap returns Err.
func (e *AuthError) Unwrap() error { return e.Err }

// NoServerError reports that no suitable server was found in time. It is the Err of a
// [mongo.LostError] without a host.
type NoServerError struct {
	// Want is the server that was needed, such as "primary of rs0".
	Want string
	// Set is the replica set that the connection string asks for, empty if it names none.
	Set string
	// Other is the set that a host has named last as its own, if that is another one.
	Other string
	// Waited is how long the call waited.
	Waited time.Duration
	// Seen has the last known state of each host.
	Seen []Sight
}

// Sight is the last known state of a host.
type Sight struct {
	// Host is host:port.
	Host string
	// State is its state as the driver names it, such as RSSecondary.
	State string
	// Err is the reason why the state is unknown; may be nil.
	Err error
}

func (e *NoServerError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no %s in %s", e.Want, e.Waited)
	if len(e.Seen) == 0 {
		b.WriteString(": none of the hosts belongs to it")
		if e.Other != "" {
			b.WriteString(", but to " + e.Other)
		}
	}
	for i, s := range e.Seen {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(s.Host + " is " + s.State)
		if s.Err != nil {
			fmt.Fprintf(&b, " (%v)", s.Err)
		}
	}
	return b.String()
}

// Misnamed reports whether no host is left because all that have answered belong to another set, or to none.
func (e *NoServerError) Misnamed() bool { return e.Set != "" && len(e.Seen) == 0 }

// lost returns the error of a call to host that got no reply.
func lost(ctx context.Context, host string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, topology.ErrPoolClosed) || errors.Is(err, topology.ErrServerClosed) || errors.Is(err, topology.ErrTopologyClosed) {
		return &mongo.LostError{Host: host, Err: ErrClosed}
	}
	_, refused := errors.AsType[*AuthError](err)
	if !refused && denied(err) {
		err, refused = &AuthError{Host: host, Err: err}, true
	}
	return &mongo.LostError{Host: host, Err: err, Refused: refused}
}

// denied reports whether err is an authentication or TLS error that a retry would
// repeat, and not a network error.
func denied(err error) bool {
	if tlsFault(err) {
		return true
	}
	login, ok := errors.AsType[*auth.Error](err)
	if !ok {
		return false
	}
	inner := login.Unwrap()
	if inner == nil {
		return true
	}
	if _, ok := errors.AsType[topology.ConnectionError](inner); ok {
		return false
	}
	if _, ok := errors.AsType[net.Error](inner); ok {
		return false
	}
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, context.Canceled, context.DeadlineExceeded, net.ErrClosed} {
		if errors.Is(inner, e) {
			return false
		}
	}
	refusal, ok := errors.AsType[driver.Error](inner)
	return !ok || !refusal.RetryableRead()
}

// tlsFault reports whether err is that of a TLS handshake that cannot succeed.
func tlsFault(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*ocsp.Error](err); ok {
		return true
	}
	// The peer's rejection of our certificate is an alert, which the library reports as
	// an operation of this name.
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// cleared reports whether no connection was made because an error of another connection
// cleared the pool.
func cleared(err error) bool {
	pool, ok := errors.AsType[interface {
		error
		Retryable() bool
	}](err)
	return ok && pool.Retryable()
}
