package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// askWithin limits how long a process is asked for a status.
const askWithin = 2 * time.Second

// Ask returns the status of a link that the process at an address (host:port) serves: as /status,
// or as /status/LINK if it runs several. It returns an error if that is the status of another
// link, or not that of the process with the given id of leases, which may be empty for any.
func Ask(ctx context.Context, address, link, process string) (Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	s, err := fetch(ctx, address+"/status")
	if err == nil && s.Link != link {
		if s, err = fetch(ctx, address+"/status/"+url.PathEscape(link)); err == nil && s.Link != link {
			err = errors.New("it does not run that link")
		}
	}
	switch {
	case err != nil:
	case process != "" && (s.Lease == nil || s.Lease.Process != process):
		err = errors.New("it is not the process " + process)
	case s.Verdict.Name == "":
		err = errors.New("it says no verdict: it is of another release")
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("ask %s for the status of %s: %w", address, link, err)
	}
	return s, nil
}

func fetch(ctx context.Context, at string) (s Snapshot, err error) {
	const most = 16 << 20
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at, http.NoBody)
	if err != nil {
		return s, err
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return s, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return s, errors.New("it answers " + resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, most)).Decode(&s); err != nil {
		return s, fmt.Errorf("it does not answer like a replicator: %w", err)
	}
	return s, nil
}
