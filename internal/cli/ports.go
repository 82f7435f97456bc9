package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Ports opens a command's listeners, all before anything runs, so that an address in use ends
// it at once. It owns them until their servers do, which close them; Close is for those that no
// server has got to. It is not for concurrent use.
type Ports struct{ open []net.Listener }

// Listen listens at the address that the flag gives, which its errors name.
func (p *Ports) Listen(ctx context.Context, flag, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w%s", flag, address, err, inUse(err))
	}
	p.Own(l)
	return l, nil
}

// Listener returns Listen as a function, for packages that open listeners but do not own them.
func (p *Ports) Listener(ctx context.Context) func(flag, address string) (net.Listener, error) {
	return func(flag, address string) (net.Listener, error) { return p.Listen(ctx, flag, address) }
}

// Own takes over a listener that was opened otherwise.
func (p *Ports) Own(l net.Listener) { p.open = append(p.open, l) }

// Close closes all listeners. Those that a server has closed already are closed a second time,
// which does no harm.
func (p *Ports) Close() {
	for _, l := range p.open {
		l.Close()
	}
}

// inUse returns a hint for the error of an address that is in use; empty for other errors.
func inUse(err error) string {
	if errors.Is(err, syscall.EADDRINUSE) {
		return ": the address is in use, possibly by another psidecar (see psidecar status); stop it, or use another address"
	}
	return ""
}
