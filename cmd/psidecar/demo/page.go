package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// show makes the planner's page, which only the hosts can reach, one of this
// machine while Observed runs.
func (s *stage) show(ctx context.Context) error {
	planner := s.fleet.planner
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("opening a port for the page: %w", err)
	}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: planner.address})
	forward.Transport = planner.client.Transport
	server := &http.Server{Handler: forward, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	err = s.options.Observed(ctx, "http://"+l.Addr().String()+"/")
	err = errors.Join(err, server.Close())
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
