package main

import (
	"log/slog"

	"github.com/psidecar/psidecar/internal/mark"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/follow"
)

// following makes the proxy follow the planner's rules, if there is a planner.
func (c *carrier) following(f *proxyFlags, opts *proxy.Options) error {
	r := &f.routing
	if r.planner.address == "" || !f.follow {
		return nil
	}
	creds, err := r.planner.credentials()
	if err != nil {
		return err
	}
	host, err := nameOf(r.host)
	if err != nil {
		return err
	}
	c.follower = follow.New(follow.Options{Planner: r.planner.address, Credentials: creds, Host: host, Dial: mark.GRPC(opts.Mark, slog.Default()),
		Codec: opts.Values, Advise: c.proxy.Advise, Measures: c.proxy.Measures})
	return nil
}
