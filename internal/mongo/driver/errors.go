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

// ErrClosed is inside the LostError of a call to a Set that was closed.
var ErrClosed = errors.New("the connection was closed by us")

// AuthError is a server that we cannot log in to, or whose certificate we do not
// believe, or that does not believe ours. It comes inside a [mongo.LostError], as
// nothing was asked; a retry is of no use before somebody has changed something.
type AuthError struct {
	// Host is the server.
	Host string
	// Err is what the server, or the TLS library, said.
	Err error
}

func (e *AuthError) Error() string {
	what := "log in to"
	if tlsFault(e.Err) {
		what = "agree on TLS with"
	}
	return fmt.Sprintf("%s %s: %v", what, e.Host, e.Err)
}

// Unwrap returns what was said.
func (e *AuthError) Unwrap() error { return e.Err }

// NoServerError is a call that found no server to ask in time. It comes inside a
// [mongo.LostError] without a host.
type NoServerError struct {
	// Want is what was looked for, such as "primary of rs0".
	Want string
	// Waited is how long.
	Waited time.Duration
	// Seen has what is known of each host.
	Seen []Sight
}

// Sight is what is known of a host.
type Sight struct {
	// Host is host:port.
	Host string
	// State is its state as the driver names it, such as RSSecondary.
	State string
	// Err is why nothing is known of it; may be nil.
	Err error
}

func (e *NoServerError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no %s in %s", e.Want, e.Waited)
	if len(e.Seen) == 0 {
		b.WriteString(": none of the hosts belongs to it")
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

// lost is the error of a call to host that has no answer.
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

// denied reports whether err is the end of a login or of a TLS handshake that would
// end like that again, and not of a connection on the way.
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

// tlsFault reports whether err is a TLS handshake that cannot succeed.
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
	// What the other side says of our certificate: an alert, which the library
	// reports as an operation of this name.
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// cleared reports whether no connection was given because the pool was emptied for
// another's fault: nothing was tried.
func cleared(err error) bool {
	pool, ok := errors.AsType[interface {
		error
		Retryable() bool
	}](err)
	return ok && pool.Retryable()
}
