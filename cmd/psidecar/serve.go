package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/psidecar/psidecar/page"
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

// listener is listen for callers that open listeners in turn.
func (p *ports) listener(ctx context.Context) func(flag, address string) (net.Listener, error) {
	return func(flag, address string) (net.Listener, error) { return p.listen(ctx, flag, address) }
}

// close closes the listeners that their servers have not closed.
func (p *ports) close() {
	for _, l := range p.open {
		l.Close()
	}
}

// page opens where a page is served; an empty address means nowhere.
func (p *ports) page(ctx context.Context, flag, address string) (page.Server, error) {
	if address == "" {
		return page.Server{Guard: page.NewGuard()}, nil
	}
	l, err := p.listen(ctx, flag, address)
	return page.Server{Listener: l, Guard: page.NewGuard(p.names...)}, err
}

// inUse says what may be the matter where an address cannot be listened at.
func inUse(err error) string {
	if errors.Is(err, syscall.EADDRINUSE) {
		return ": something listens there already, perhaps another psidecar (psidecar status asks an agent); end that, or give another address"
	}
	return ""
}
