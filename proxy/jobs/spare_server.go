package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/spare"
)

// spareMemory bounds the memory of requests to spare servers of this host that are read and applied. It is
// enough for any one of them.
const spareMemory = 512 << 20

// spareVersion is the version of a spare server's hello.
const spareVersion = 1

// spareHello returns what a link to a spare server begins with: the job, its run, the asking host,
// the spare server, and a digest of all of them, by which two proxies notice that they count them
// differently.
func (x *job) spareHello(i int) []byte {
	b := []byte{spareVersion}
	for _, text := range []string{x.name, string(x.run), x.names()[0], x.spares.hosts[i]} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	return append(b, x.spareDigest()...)
}

// spareDigest returns a digest of the hosts of the job's spare servers.
func (x *job) spareDigest() []byte {
	sum := sha256.Sum256([]byte(strings.Join(x.spares.hosts, " ")))
	return sum[:8]
}

// errNoSpare is why a link to a spare server is refused for now: the other proxy tries again.
var errNoSpare = errors.New("this proxy does not know the job yet")

// SpareServer returns a function that serves a link to a spare server to its end, and closes it. hello is
// what the other proxy has sent. from is that proxy, nil where it is not verified, and at the address of
// this host at which the link arrived.
func (j *Jobs) SpareServer(hello []byte, from Peer, at netip.Addr) (serve func(context.Context, net.Conn) error, err error) {
	if len(hello) > 0 && hello[0] != spareVersion {
		return nil, reason.Errorf(reason.NotAllowed, "a spare server's hello of version %d, this proxy speaks %d", hello[0], spareVersion)
	}
	p := parser{b: hello}
	p.byte()
	l := letter{job: p.text(), run: plan.Run(p.text()), from: p.text(), to: p.text()}
	if p.failed || len(p.b) != 8 {
		return nil, reason.Errorf(reason.NotAllowed, "a damaged hello for a spare server")
	}
	x := j.named(l.job, l.run)
	if x == nil || x.run != l.run {
		return nil, reason.Errorf(reason.Stopping, "a spare server of job %s: %w", l.job, errNoSpare)
	}
	v := visitor{jobs: j, from: from, at: at.Unmap().String(), known: map[string]bool{}}
	if err := v.believe(x, &l); err != nil {
		return nil, err
	}
	server, err := x.spareServer(l.from, l.to, p.b)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, conn net.Conn) error {
		x.countSpareLink(1)
		defer x.countSpareLink(-1)
		return server.Serve(ctx, conn)
	}, nil
}

// countSpareLink counts a link that this host's spare server serves.
func (x *job) countSpareLink(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spares.links += n
}

// spareServer returns this host's spare server, and opens it if need be.
func (x *job) spareServer(from, to string, digest []byte) (*spare.Server, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.gone || x.site == nil:
		return nil, reason.Errorf(reason.Stopping, "a spare server of job %s: %w", x.name, errNoSpare)
	case !slices.Contains(x.names(), from) && !slices.Contains(x.otherNames(), from):
		return nil, reason.Errorf(reason.NotAllowed, "a spare server of job %s for %s, which has no worker of it", x.name, from)
	case string(digest) != string(x.spareDigest()) || !slices.Contains(x.spares.hosts, to) || !slices.Contains(x.names(), to):
		return nil, reason.Errorf(reason.NotAllowed, "a spare server of job %s at %s: the proxies count its spare servers differently; run all of them with --spare-servers from the job's start", x.name, to)
	}
	if x.spares.server == nil {
		// The folder says that keys may be displaced before there is anything to lose.
		if err := x.mayBeDisplaced(); err != nil {
			return nil, reason.Wrap(err, "a spare server of job %s", x.name)
		}
		if err := x.openSpare(); err != nil {
			return nil, err
		}
	}
	return x.spares.server, nil
}

// openSpare opens this host's spare server; the caller holds x.mu.
func (x *job) openSpare() error {
	if !x.router.Ready() { // it does not know yet whether keys are in parts
		return reason.Errorf(reason.Stopping, "a spare server of job %s: %w", x.name, errNoSpare)
	}
	store, err := spare.OpenStore(filepath.Join(x.dir, spareFile), spare.StoreOptions{Name: []byte(x.name + " " + string(x.run)), Limit: x.jobs.opts.SpareLimit})
	if errors.Is(err, mapped.ErrInUse) { // by the proxy that this one replaces
		return reason.Errorf(reason.Stopping, "a spare server of job %s: %w", x.name, err)
	}
	if err == nil && store.IsNew() && x.router.Table().Parted() {
		err = errors.Join(errors.New("the file with parts of its values is gone"), store.Remove())
	}
	if err != nil {
		err = reason.Errorf(reason.State, "a spare server of job %s: %w", x.name, err)
		// While all values are whole, nothing is lost: they stay so.
		if x.failed == nil && x.router.Table().Parted() {
			x.failed = reason.Errorf(reason.State, "parts of values are not there any more, restart the job: %w", err)
			x.jobs.log.Error("requests of a job are refused", "job", x.name, "error", x.failed)
		}
		return err
	}
	x.spares.server = spare.NewServer(store, spare.ServerOptions{Room: x.jobs.spareRoom, Traffic: x.spares.served, Log: x.jobs.log})
	return nil
}

// spareServerState returns the state of this host's spare server, nil where nobody has asked for it; the caller
// holds x.mu.
func (x *job) spareServerState() *SpareServerState {
	if x.spares.server == nil {
		return nil
	}
	s := SpareServerState{Links: x.spares.links}
	s.SentBytes, s.ReceivedBytes = x.spares.served.Bytes()
	s.SparedBytes = x.spares.served.Spared()
	return &s
}

// SpareTraffic returns the bytes of links to spare servers, of all jobs: asked has those of this host's workers,
// served those of this host's spare servers. Those of a worker to its own host's are in both.
func (j *Jobs) SpareTraffic() (asked, served *spare.Traffic) { return &j.spareAsked, &j.spareServed }

// spareFile has the values of a spare server, in a job's folder.
const spareFile = "spare.values"

// removeSpare removes the values of this host's spare server; the caller holds x.mu.
func (x *job) removeSpare() {
	var err error
	path := filepath.Join(x.dir, spareFile)
	if x.spares.server != nil {
		err = x.spares.server.Release().Remove()
		x.spares.server = nil
	} else if _, missing := os.Stat(path); missing == nil {
		err = spare.RemoveStore(path)
	} else {
		return
	}
	if err != nil {
		x.jobs.log.Warn("removing the values of a spare server whose job is over", "job", x.name, "error", err)
		return
	}
	x.jobs.log.Info("the values of a spare server were removed: its job is over", "job", x.name)
}
