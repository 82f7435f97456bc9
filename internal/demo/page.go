package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// A forwarder serves the planner's page, which can be reached in the hosts' network only, at an
// address of this machine.
type forwarder struct {
	url    string
	server *http.Server
	ended  chan error
}

// openPage starts a forwarder at a free port of loopback. It works for whichever planner runs
// at the same address, and answers 503 while none does.
func (s *stage) openPage(ctx context.Context) (*forwarder, error) {
	planner := s.fleet.planner
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("opening a port for the page: %w", err)
	}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: planner.address})
	// The transport dials from the planner's host.
	forward.Transport = planner.client.Transport
	forward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		slog.Debug("the page", "error", err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the planner is being replaced or has exited: reload this page", http.StatusServiceUnavailable)
	}
	p := &forwarder{url: "http://" + l.Addr().String() + "/", server: &http.Server{Handler: forward, ReadHeaderTimeout: 10 * time.Second}, ended: make(chan error, 1)}
	go func() { p.ended <- p.server.Serve(l) }()
	return p, nil
}

// close ends the forwarder, and requests that are being answered.
func (p *forwarder) close() error {
	err := p.server.Close()
	if served := <-p.ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
