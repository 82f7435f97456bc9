package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/jobs"
)

// route prepares the routing of requests, and sets what it needs in the proxy's options. With
// routing a connection must not bypass the proxies: its requests would reach servers that do
// not have the keys. So MeshOnly is set, and a proxy that does not answer is waited for
// longer and tried again sooner.
func (d *Daemon) route(ctx context.Context, p *proxy.Options, o jobs.Options) (err error) {
	// d.proxy is set before anything can dial: jobs dial only while they run.
	o.Dial = func(ctx context.Context, host netip.Addr) (net.Conn, error) { return d.proxy.DialSite(ctx, host) }
	o.DialPlanner = dial.MarkGRPC(p.Mark, slog.Default())
	o.Guard, o.Health = &d.guard, p.Health
	// What the codec holds back of pushes has to move along with keys.
	if p.Values != nil {
		o.Waits = p.Values
	}
	o.Owner = p.Reach.Owner
	p.Guard = &d.guard
	// A connection past a proxy would be one whose requests go wrong.
	p.MeshOnly, p.Retry, p.ConnectTimeout = true, 500*time.Millisecond, 3*time.Second
	if err := awaitFolder(ctx, o.Dir, stateWait); err != nil {
		return err
	}
	p.Jobs, err = jobs.New(o)
	return err
}

// stateWait is how long a proxy waits for the agent, which may start later, to make its state
// folder.
const stateWait = 20 * time.Second

// awaitFolder makes a folder, or waits until another process has made it where this user may
// not.
func awaitFolder(ctx context.Context, dir string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = unix.Access(dir, unix.R_OK|unix.W_OK|unix.X_OK)
		}
		if err == nil {
			return nil
		}
		// Anything else does not pass by waiting.
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
			return fmt.Errorf("--state-dir %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("--state-dir %s: not writable for user %d, and not created by an agent with --proxy-uid %[2]d: %w", dir, os.Geteuid(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
