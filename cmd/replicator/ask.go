package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/web"
)

// asker asks the processes that run links for their status.
type asker struct {
	client web.Client
	// next is how long a place is asked before the next one is, too. Default nextPlaceAfter.
	next time.Duration
}

// newAsker trusts the authorities in a PEM file, or those of the system if it is empty.
func newAsker(authorities string) (*asker, error) {
	if authorities == "" {
		return &asker{}, nil
	}
	text, err := os.ReadFile(authorities)
	if err != nil {
		return nil, fmt.Errorf("--tls-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--tls-ca: there is no certificate in %s", authorities)
	}
	return &asker{client: web.Client{TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}}}, nil
}

// place is where a process may serve its status, and the name that its certificate has to have.
type place struct{ address, name string }

// ask returns the status of a link that a process serves: as /status, or as /status/LINK if it
// runs several. It returns an error if that is the status of another link, or not that of the process
// with the given id of leases, which may be empty for any.
func (a *asker) ask(ctx context.Context, at place, link, process string) (status.Snapshot, error) {
	var s status.Snapshot
	err := a.client.Get(ctx, at.address, at.name, "/status", &s)
	if err == nil && s.Link != link {
		s = status.Snapshot{}
		if err = a.client.Get(ctx, at.address, at.name, "/status/"+url.PathEscape(link), &s); err == nil && s.Link != link {
			err = errors.New("it does not run that link")
		}
	}
	unknown := new(x509.UnknownAuthorityError)
	switch {
	case errors.As(err, unknown):
		err = fmt.Errorf("%w (--tls-ca names a file with the authorities to trust)", err)
	case err != nil:
	case process != "" && (s.Lease == nil || s.Lease.Process != process):
		err = errors.New("it is not the process " + process)
	case s.Verdict.Name == "":
		err = errors.New("it says no verdict: it is of another release")
	}
	if err != nil {
		return status.Snapshot{}, fmt.Errorf("ask %s for the status of %s: %w", at.address, link, err)
	}
	return s, nil
}

// find asks the process that runs a link wherever it may be, and returns where it was.
func (a *asker) find(ctx context.Context, link, leader string) (status.Snapshot, string, error) {
	places := placesOf(leader)
	if len(places) == 0 {
		return status.Snapshot{}, "", fmt.Errorf("the process %s serves no status (--listen)", leader)
	}
	return a.first(ctx, places, link, leader)
}

// nextPlaceAfter is much longer than a process on this host takes to answer.
const nextPlaceAfter = 250 * time.Millisecond

// first asks a process at several places and returns the first answer. Where nobody is, that may take its time: the next place is
// asked after a while, or as soon as an earlier one has failed.
func (a *asker) first(ctx context.Context, places []place, link, process string) (status.Snapshot, string, error) {
	type answer struct {
		place int
		s     status.Snapshot
		err   error
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	answers, failed := make(chan answer, len(places)), make(chan struct{}, len(places))
	for i, at := range places {
		asking.Go(func() {
			for range i {
				select {
				case <-failed:
				case <-time.After(cmp.Or(a.next, nextPlaceAfter)):
				case <-ctx.Done():
				}
			}
			s, err := a.ask(ctx, at, link, process)
			if err != nil {
				failed <- struct{}{}
			}
			answers <- answer{i, s, err}
		})
	}
	faults := make([]error, len(places))
	for range places {
		got := <-answers
		if got.err == nil {
			return got.s, places[got.place].address, nil
		}
		faults[got.place] = got.err
	}
	return status.Snapshot{}, "", errors.Join(faults...)
}

// placesOf returns where a process may serve its status: its id begins with its host and
// the port of --listen, or another name where it serves none.
func placesOf(process string) []place {
	parts := strings.Split(process, ":")
	if len(parts) < 4 {
		return nil
	}
	host, port := strings.Join(parts[:len(parts)-3], ":"), parts[len(parts)-3]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil
	}
	list := []place{{net.JoinHostPort(host, port), host}}
	if own, err := os.Hostname(); err == nil && own == host {
		list = append([]place{{net.JoinHostPort("127.0.0.1", port), host}}, list...)
	}
	return list
}
