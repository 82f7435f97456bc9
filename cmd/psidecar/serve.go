package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/psidecar/psidecar/page"
)

// ports opens a command's listeners, all before anything runs, so that an address in use ends
// it at once. It owns them until their servers do, which close them; close is for those that no
// server has got to. It is not for concurrent use.
type ports struct {
	open  []net.Listener
	names []string // of this host, in requests for its pages (--http-name)
}

// listen listens at the address that the flag gives, which its errors name.
func (p *ports) listen(ctx context.Context, flag, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w%s", flag, address, err, inUse(err))
	}
	p.open = append(p.open, l)
	return l, nil
}

// listener returns listen as a function, for packages that open listeners but do not own them.
func (p *ports) listener(ctx context.Context) func(flag, address string) (net.Listener, error) {
	return func(flag, address string) (net.Listener, error) { return p.listen(ctx, flag, address) }
}

// close closes all listeners. Those that a server has closed already are closed a second time,
// which does no harm.
func (p *ports) close() {
	for _, l := range p.open {
		l.Close()
	}
}

// page opens the listener of a page. With an empty address the server serves nothing, but has a
// guard, whose metrics others collect.
func (p *ports) page(ctx context.Context, flag, address string) (page.Server, error) {
	if address == "" {
		// A guard without names suffices where nobody asks.
		return page.Server{Guard: page.NewGuard()}, nil
	}
	l, err := p.listen(ctx, flag, address)
	return page.Server{Listener: l, Guard: page.NewGuard(p.names...)}, err
}

// inUse returns a hint for the error of an address that is in use; empty for other errors.
func inUse(err error) string {
	if errors.Is(err, syscall.EADDRINUSE) {
		return ": the address is in use, possibly by another psidecar (see psidecar status); stop it, or use another address"
	}
	return ""
}
