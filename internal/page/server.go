package page

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/psidecar/psidecar/internal/handshake"
)

// Bounds of connections without a request in progress, in total and by source.
const (
	openings          = 512
	openingsPerSource = 64
)

// shutdownPatience is how long requests in progress may take when the server ends.
const shutdownPatience = 3 * time.Second

// A Server serves HTTP for reading only, and nothing to pages of other sites. The pages of all
// daemons are served by one.
type Server struct {
	Listener net.Listener // nil: nothing is served
	Guard    *Guard
}

// OpenServer returns the server of a page at the address that the flag gives. Its guard accepts
// these names of the host. With an empty address the server serves nothing, but has a guard,
// whose metrics others collect. listen opens and owns the listener.
func OpenServer(listen func(flag, address string) (net.Listener, error), flag, address string, names ...string) (Server, error) {
	if address == "" {
		// A guard without names suffices where nobody asks.
		return Server{Guard: NewGuard()}, nil
	}
	l, err := listen(flag, address)
	return Server{Listener: l, Guard: NewGuard(names...)}, err
}

// Addr returns the address of the listener; nil without one.
func (s Server) Addr() net.Addr {
	if s.Listener == nil {
		return nil
	}
	return s.Listener.Addr()
}

// Serve serves h until ctx ends, then lets requests in progress finish for up to 3 s. It closes
// the listener. Without one it returns nil at once.
func (s Server) Serve(ctx context.Context, h http.Handler) error {
	if s.Listener == nil {
		return nil
	}
	slog.Info("serving", "url", "http://"+s.Listener.Addr().String()+"/")
	server := &http.Server{Handler: s.Guard.Handler(h), MaxHeaderBytes: 64 << 10, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 5 * time.Minute}
	handshake.BoundHTTP(server, handshake.New(handshake.Affordable(openings), openingsPerSource))
	ended := make(chan error, 1)
	// Shutdown returns when requests are done, while Serve returns at once when it begins.
	go func() {
		<-ctx.Done()
		// ctx has ended, so the patience needs a context without its end.
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownPatience)
		defer cancel()
		ended <- server.Shutdown(patience)
	}()
	if err := server.Serve(s.Listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving HTTP: %w", err)
	}
	if err := <-ended; err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("ending HTTP: %w", err)
	}
	return nil
}
