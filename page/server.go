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

// Bounds of connections that have not asked for anything, or nothing more, in all
// and of one source.
const (
	openings          = 512
	openingsPerSource = 64
)

// shutdownPatience is how long requests in progress may take at the end.
const shutdownPatience = 3 * time.Second

// A Server serves over HTTP at an address: reading only, and nothing to the pages
// of other sites. All daemons' pages are served by one.
type Server struct {
	Listener net.Listener // nil: nothing is served
	Guard    *Guard
}

// Addr returns where it is served; nil: nowhere.
func (s Server) Addr() net.Addr {
	if s.Listener == nil {
		return nil
	}
	return s.Listener.Addr()
}

// Serve serves h until ctx ends, then lets requests in progress finish. It closes
// the listener.
func (s Server) Serve(ctx context.Context, h http.Handler) error {
	if s.Listener == nil {
		return nil
	}
	slog.Info("serving", "url", "http://"+s.Listener.Addr().String()+"/")
	server := &http.Server{Handler: s.Guard.Handler(h), MaxHeaderBytes: 64 << 10, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 5 * time.Minute}
	handshake.BoundHTTP(server, handshake.New(handshake.Affordable(openings), openingsPerSource))
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
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
