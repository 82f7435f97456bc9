package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/psidecar/psidecar/agent/web"
	"github.com/psidecar/psidecar/internal/handshake"
)

// ports opens a command's listeners, all before anything runs, so that an
// address in use ends it at once.
type ports struct {
	open  []net.Listener
	names []string // of this host, in requests for its pages (--http-name)
}

// listen listens at the address that the flag gives.
func (p *ports) listen(ctx context.Context, flag, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w%s", flag, address, err, inUse(err))
	}
	p.open = append(p.open, l)
	return l, nil
}

// close closes the listeners that have not been closed by who serves them.
func (p *ports) close() {
	for _, l := range p.open {
		l.Close()
	}
}

// page is what is served over HTTP at the address that a flag gives: reading
// only, and nothing to the pages of other sites.
type page struct {
	listener net.Listener // nil: nothing
	guard    *web.Guard
}

// page opens where a page is served; an empty address means nowhere.
func (p *ports) page(ctx context.Context, flag, address string) (page, error) {
	if address == "" {
		return page{guard: web.NewGuard()}, nil
	}
	l, err := p.listen(ctx, flag, address)
	return page{l, web.NewGuard(p.names...)}, err
}

// serve serves h until ctx ends, then lets requests in progress finish.
func (p page) serve(ctx context.Context, h http.Handler) error {
	if p.listener == nil {
		return nil
	}
	slog.Info("serving", "url", "http://"+p.listener.Addr().String()+"/")
	s := &http.Server{Handler: p.guard.Handler(h), MaxHeaderBytes: 64 << 10, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 5 * time.Minute}
	bound(s, handshake.New(handshake.Affordable(pageOpenings), pageOpeningsPerSource))
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		ended <- s.Shutdown(patience)
	}()
	if err := s.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving HTTP: %w", err)
	}
	if err := <-ended; err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("ending HTTP: %w", err)
	}
	return nil
}
