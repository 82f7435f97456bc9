package jobs

import (
	"bufio"
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
)

// siteLink carries letters to the sites of one other host. What cannot be sent is dropped and
// counted: sites repeat what has not been answered.
type siteLink struct {
	queue chan []byte
	bytes atomic.Int64 // of queue
}

const (
	linkQueue  = 4096                   // letters
	linkBytes  = 32 << 20               // of letters; a single one may have more
	linkRetry  = 100 * time.Millisecond // pause before connecting again
	writeLimit = 5 * time.Second        // after which a proxy that does not read is given up
)

// names returns the names of this host among the job's sites: the addresses of its workers or,
// without any, of its servers, or of its scheduler; ascending. A host with several addresses has
// several names; the first one is its site's.
func (x *job) names() []string {
	for _, wanted := range []pslite.Role{pslite.Worker, pslite.Server, pslite.Scheduler} {
		set := map[string]bool{}
		for _, n := range x.nodes.Nodes() {
			if role, _, ok := pslite.Rank(n.ID); ok && role == wanted && x.local[n.ID] {
				set[siteName(n)] = true
			}
		}
		if len(set) > 0 {
			return slices.Sorted(maps.Keys(set))
		}
	}
	return []string{""}
}

// siteName returns the name of a node's site: its address, or host name, as the node table has it.
func siteName(n pslite.Node) string {
	if ip, err := netip.ParseAddr(n.Hostname); err == nil {
		return ip.Unmap().String()
	}
	return n.Hostname
}

// hasWorker reports whether a worker of the run is on this host; the caller holds x.mu.
func (x *job) hasWorker() bool {
	for id := range x.local {
		if role, _, ok := pslite.Rank(id); ok && role == pslite.Worker {
			return true
		}
	}
	return false
}

// workerHosts returns the hosts of all workers, with repetitions.
func (x *job) workerHosts() (all []string) {
	for _, n := range x.nodes.Nodes() {
		if role, _, ok := pslite.Rank(n.ID); ok && role == pslite.Worker {
			all = append(all, siteName(n))
		}
	}
	return all
}

// otherNames returns the names of the other hosts that have workers, ascending. Hosts with servers
// only send no requests, so moves need not wait for them.
func (x *job) otherNames() []string {
	mine := x.names()
	others := slices.DeleteFunc(x.workerHosts(), func(n string) bool { return slices.Contains(mine, n) })
	slices.Sort(others)
	return slices.Compact(others)
}

// sendSite queues a message for another site; the caller holds x.mu. Answers go in all names of
// this host, since the other site may wait for any of them.
func (x *job) sendSite(to string, m *migrate.Message) {
	addr, err := netip.ParseAddr(to)
	if err != nil {
		x.jobs.log.Error("a host of the job has no address; its proxy cannot be reached", "job", x.name, "host", to)
		x.jobs.letters.count(letterAddress, 1)
		return
	}
	from := []string{x.site.Name()}
	if m.Kind == migrate.Quiet || m.Kind == migrate.Holding {
		from = x.names() // this host may be known by several
	}
	for _, name := range from {
		l := letter{job: x.name, run: x.run, from: name, to: to, store: x.seen.store, version: x.seen.version, message: *m}
		x.jobs.send(addr, l.append(nil))
	}
}

// send queues a letter for a host, and starts a link if there is none. It does not block: a full
// queue drops the letter.
func (j *Jobs) send(addr netip.Addr, b []byte) {
	// Held to the end, so that no letter goes to a link that is being dropped.
	j.linksMu.Lock()
	defer j.linksMu.Unlock()
	l := j.links[addr]
	if l == nil {
		l = &siteLink{queue: make(chan []byte, linkQueue)}
		if !j.start(func(ctx context.Context) { l.sendQueued(ctx, j, addr) }) {
			j.letters.count(letterStopping, 1)
			return
		}
		j.links[addr] = l
	}
	if !l.addLetter(b) {
		j.letters.count(letterFull, 1)
	}
}

// addLetter queues a letter, or returns false where there is no room; the caller holds linksMu.
func (l *siteLink) addLetter(b []byte) bool {
	if n := l.bytes.Load(); n > 0 && n+int64(len(b)) > linkBytes {
		return false
	}
	// Before the letter is there: its sender subtracts its bytes at once.
	l.bytes.Add(int64(len(b)))
	select {
	case l.queue <- b:
		return true
	default:
		l.bytes.Add(-int64(len(b)))
		return false
	}
}

// takeLetter notes that a letter has left the queue, and returns it.
func (l *siteLink) takeLetter(b []byte) []byte {
	l.bytes.Add(-int64(len(b)))
	return b
}

// dropLink forgets the link to a host that nothing is queued for. It reports false where
// something is.
func (j *Jobs) dropLink(l *siteLink, addr netip.Addr) bool {
	j.linksMu.Lock()
	defer j.linksMu.Unlock()
	if len(l.queue) > 0 {
		return false
	}
	delete(j.links, addr)
	return true
}

// linkIdle is how long a link is kept over which no letters go: hosts come and go.
const linkIdle = 5 * time.Minute

var errIdle = errors.New("no letters")

// errEnded means that the other host's proxy has ended a link, as when it is replaced.
var errEnded = errors.New("the other proxy has closed the link")

// sendQueued sends the queue over one connection after another, until ctx ends or there has
// been nothing to send for linkIdle.
func (l *siteLink) sendQueued(ctx context.Context, j *Jobs, addr netip.Addr) {
	var next []byte // a letter that the last link has not taken
	for told := ""; ctx.Err() == nil; {
		var err error
		began := time.Now()
		next, err = l.session(ctx, j, addr, next)
		if ctx.Err() != nil || errors.Is(err, errIdle) && j.dropLink(l, addr) {
			return
		}
		if errors.Is(err, errEnded) && time.Since(began) > linkRetry {
			continue // the next proxy may be there already
		}
		if text := err.Error(); text != told && !errors.Is(err, errIdle) {
			told = text
			j.log.Info("no link to the proxy on another host; retrying", "host", addr, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(linkRetry):
		}
	}
}

// nextLetter returns the next letter of the queue. It fails when ctx ends, when the link has ended
// and when there has been no letter for linkIdle.
func (l *siteLink) nextLetter(ctx context.Context, j *Jobs, ended <-chan struct{}) ([]byte, error) {
	idle := time.NewTimer(j.linkIdle)
	defer idle.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-ended:
		return nil, errEnded
	case <-idle.C:
		return nil, errIdle
	case b := <-l.queue:
		return l.takeLetter(b), nil
	}
}

// session sends letters over one connection until it fails; b is the first one, nil where the queue
// has it. It connects only when there is a letter. Letters whose write has failed are dropped, and
// so is the first one if nobody can be reached: it would be out of date. It returns a letter that
// came too late for this connection.
func (l *siteLink) session(ctx context.Context, j *Jobs, addr netip.Addr, b []byte) (late []byte, err error) {
	if b == nil {
		if b, err = l.nextLetter(ctx, j, nil); err != nil {
			return nil, err
		}
	}
	conn, err := j.opts.Dial(ctx, addr)
	if err != nil {
		j.letters.count(letterLink, 1)
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	ended := untilEnd(conn)
	defer func() { conn.Close(); <-ended }()
	for {
		n, err := l.writeLetters(conn, b)
		if err != nil {
			j.letters.count(letterLink, n)
			return nil, err
		}
		if b, err = l.nextLetter(ctx, j, ended); err != nil {
			return nil, err
		}
		// A write to a connection that the other end has closed would succeed once.
		select {
		case <-ended:
			return b, errEnded
		default:
		}
	}
}

// untilEnd returns a channel that is closed when the other proxy, which sends nothing over a link
// between sites, has ended it.
func untilEnd(conn net.Conn) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn.Read(make([]byte, 1)) // whatever comes of it, the link is of no use any more
	}()
	return ended
}

// writeLetters writes a letter and all others that are queued, in one go, and returns their number.
func (l *siteLink) writeLetters(conn net.Conn, b []byte) (n uint64, err error) {
	n = 1
	for more := true; more && len(b) < 1<<20; {
		select {
		case next := <-l.queue:
			b = append(b, l.takeLetter(next)...)
			n++
		default:
			more = false
		}
	}
	if err := conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return n, err
	}
	_, err = conn.Write(b)
	return n, err
}

// ServeSite handles the letters of another host's sites that come over conn, until it ends, and
// closes it. from is the proxy at the other end, nil where it is not verified, and at the address
// of this host at which conn arrived. A letter that cannot be from that proxy ends the connection.
func (j *Jobs) ServeSite(ctx context.Context, conn net.Conn, from Peer, at netip.Addr) error {
	v := visitor{jobs: j, from: from, at: at.Unmap().String(), known: map[string]bool{}}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	p := post{conn: conn, r: bufio.NewReaderSize(conn, letterRoom), room: j.post, vet: func(l *letter) (bool, error) {
		if x := j.named(l.job, l.run); x != nil {
			return true, v.believe(x, l)
		}
		j.letters.count(letterJob, 1)
		return false, nil
	}}
	defer p.done()
	for {
		l, err := p.readLetter(ctx)
		if err != nil {
			return err
		}
		if x := j.named(l.job, l.run); x != nil {
			x.hear(l)
		} else { // it has ended meanwhile
			j.letters.count(letterJob, 1)
		}
		p.done()
	}
}

// cannotMove logs why keys cannot move, once for each reason.
func (x *job) cannotMove(err error) {
	if text := err.Error(); text != x.immovable {
		x.immovable = text
		x.jobs.log.Error("keys cannot move", "job", x.name, "error", err)
	}
}

// mayBeDisplaced makes sure that the next proxy asks before it lets anything pass, by writing
// displaced and the store's id. It returns an error where that, or a ledger, cannot be written;
// then no key may move. The caller holds x.mu.
func (x *job) mayBeDisplaced() error {
	if x.displaced && x.saved == x.seen.store && x.savedApp == x.router.App() {
		return nil
	}
	// A ledger that cannot be written would not survive a kill. While all keys are at home that
	// does no harm; with displaced keys it would.
	before := x.displaced
	if !before {
		for _, l := range x.ledgers {
			if err := l.Trouble(); err != nil {
				return err
			}
		}
	}
	x.displaced = true
	if err := x.save(); err != nil {
		x.displaced = before
		return err
	}
	x.saved = x.seen.store
	if x.journal == nil && x.router.Ready() {
		x.keepJournal()
	}
	return nil
}
