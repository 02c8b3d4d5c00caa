package status

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// readTimeout and writeTimeout bound one request, idleTimeout the time between
	// two of a connection.
	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = time.Minute
	// lastTimeout bounds requests in flight at shutdown.
	lastTimeout = 3 * time.Second
	// headerBytes bounds the header of a request.
	headerBytes = 16 << 10
)

// Serve answers requests on ln with h until ctx is done; then it waits a short time
// for requests in flight and returns nil. It closes ln.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes,
	}
	var end sync.WaitGroup
	ended := make(chan struct{})
	end.Go(func() {
		select {
		case <-ended:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
			defer cancel()
			if s.Shutdown(last) != nil {
				_ = s.Close() // clients that read so slowly are cut off
			}
		}
	})
	err := s.Serve(ln)
	close(ended)
	end.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("status: serve on %s: %w", ln.Addr(), err)
}
