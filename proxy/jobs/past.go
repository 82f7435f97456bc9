package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// A connection made while a proxy is away is direct, and stays so until it breaks. A request on it
// is not routed. An answer on it to a request of a proxy's own, or to a part of one, reaches a
// worker that never asked: PS-lite takes its timestamp for an index into its tables. Therefore:
//   - nothing is asked in a worker's name, and no key moves, unless this proxy carries all connections of its workers,
//     both ways ([job.carried]);
//   - a host whose server was asked such a thing lately fails closed ([job.noteOwn]);
//   - a server's proxy lets no answer to such a thing bypass the mesh: it ends the connection ([requests.misleads]), and
//     the server, which connects again and may then be carried, repeats the answer.

// isOwn reports whether a message has a timestamp that a router has made.
func isOwn(m *pslite.Meta) bool {
	return m.Data() && m.Timestamp >= route.FirstOwn && m.Timestamp <= route.LastOwn
}

// carried returns nil if this proxy carries all connections between this host's workers and the
// servers, both ways, and what bypassed it while it was away has settled; the caller holds x.mu.
func (x *job) carried() error {
	// Each worker of this host must have a connection to each server, and each server one back.
	for _, worker := range x.router.Workers() {
		for rank := range int32(x.servers) {
			p := pair{worker, rank}
			up, down := x.up[p], x.down[p]
			switch {
			case up == nil || !up.open():
				x.backSince = time.Time{}
				return fmt.Errorf("the connection from worker %d to server %d bypasses this host's proxy", worker, pslite.ServerID(int(rank)))
			case down == nil || !down.open():
				x.backSince = time.Time{}
				return fmt.Errorf("the connection from server %d to worker %d bypasses a proxy", pslite.ServerID(int(rank)), worker)
			}
		}
	}
	if x.settles() {
		return x.settlePast(time.Now())
	}
	return nil
}

// settleFor is how long after all connections are back nothing moves, where another proxy was
// replaced. With PS_RESEND a worker repeats what bypassed the proxy and was not acknowledged, and
// only then is that known to be in flight. If a key moved before, the repetition could be taken for
// a new request and be split, although its server has it already. The same holds after requests
// were abandoned: servers handle what of them has arrived.
const settleFor = 3 * time.Second

// errSettling is why nothing moves for a while after a proxy was away, or requests were abandoned.
var errSettling = errors.New("the job's connections have just returned to this proxy")

// settlePast returns nil once that time is over; the caller holds x.mu.
func (x *job) settlePast(now time.Time) error {
	if x.backSince.IsZero() {
		x.backSince = now
	}
	if x.settled = now.Sub(x.backSince) >= settleFor; !x.settled {
		return errSettling
	}
	return nil
}

// pastAfter is how long connections may be missing before they count as bypassing the proxy: nodes
// reconnect in less.
const pastAfter = 10 * time.Second

// Where another host reports that connections of its workers bypass its proxy, a move is tried
// pastTries times in all. The first pause is pastPause, since at the beginning of a job they may
// just not be there yet; each further one is twice as long.
const (
	pastPause = 250 * time.Millisecond
	pastTries = 6
)

// mayAsk reports whether servers may be asked in a worker's name, and so keys be moved. Where that
// has not been so for pastAfter, it refuses all work: a connection that bypasses the proxy does so
// until it breaks, and the planner should plan with other keys. The caller holds x.mu.
func (x *job) mayAsk(now time.Time) bool {
	err := x.carried()
	x.router.SetCarried(err == nil)
	again := now.Sub(x.pastSeen) < pastAfter
	switch {
	case err == nil:
		x.pastSeen = time.Time{}
		return true
	case !again: // it was not looked at in between
		x.pastSince = now
	case now.Sub(x.pastSince) >= pastAfter:
		for _, w := range x.work {
			x.refuse(w, "past", err.Error()+": it was made while a proxy was away, and stays direct until it breaks", len(w.keys))
		}
		x.work = slices.Delete(x.work, 0, len(x.work))
	}
	x.pastSeen = now
	return false
}

// known reports whether the sites of all other workers know this run. One whose processes met the
// scheduler while its proxy was away may not. It would never become quiet, so no move would end;
// and a proxy that is killed once keys may be displaced waits for its answer. So before anything is
// held each site is asked for its holds until it has sent some letter. Where one is silent for
// pastAfter, all work is refused; the caller holds x.mu.
func (x *job) known(now time.Time) bool {
	var silent []string
	for _, name := range x.otherNames() {
		if !x.heard[name] {
			silent = append(silent, name)
			x.sendSite(name, &migrate.Message{Kind: migrate.Join})
		}
	}
	switch {
	case len(silent) == 0:
		x.unheardSince = time.Time{}
		return true
	case x.unheardSince.IsZero():
		x.unheardSince = now
	case now.Sub(x.unheardSince) >= pastAfter:
		for _, w := range x.work {
			x.refuse(w, "past", fmt.Sprintf("the proxies at %s do not know this run: they were away or unreachable when it started", someOf(silent)), len(w.keys))
		}
		x.work = slices.Delete(x.work, 0, len(x.work))
	}
	return false
}

// mostNamed is how many hosts a message names.
const mostNamed = 8

// someOf lists hosts, in order: the first few of them and the number of the others.
func someOf(hosts []string) string {
	slices.Sort(hosts)
	text := strings.Join(hosts[:min(len(hosts), mostNamed)], ", ")
	if more := len(hosts) - mostNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// owesFor is how long after a request of a proxy's own a server may still answer it. With PS_RESEND
// it repeats the answer until that is acknowledged.
const owesFor = 10 * time.Second

// noteOwn notes that a proxy has sent a request of its own to a server of this host, before the
// server gets it. The time is written at most once a second.
func (x *job) noteOwn() {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	if x.site == nil || x.gone || now.Sub(x.asked) < time.Second {
		return
	}
	x.asked = now
	x.needGuard(true)
	x.keepAsked(now)
}

// askedFile is an empty file whose modification time is that of the last such request.
const askedFile = "asked"

// makeAsked creates the file while there is room for it, with a time long ago. On a full disk its
// time can still be changed, which is why a time is kept and not a content. The caller holds x.mu.
func (x *job) makeAsked() error {
	path := filepath.Join(x.dir, askedFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keeping a job: %w", err)
	}
	at := x.asked
	if at.IsZero() {
		at = time.Unix(0, 0)
	}
	return errors.Join(f.Close(), os.Chtimes(path, at, at))
}

// keepAsked writes the time for the next proxy, and logs once where it cannot; the caller holds
// x.mu.
func (x *job) keepAsked(now time.Time) {
	err := os.Chtimes(filepath.Join(x.dir, askedFile), now, now)
	if err == nil || x.unkeptAsked {
		return
	}
	x.unkeptAsked = true
	x.jobs.log.Warn("cannot save that a server owes a proxy an answer: if this proxy is killed, connections could bypass it, and a worker could receive that answer", "job", x.name, "error", err)
}

// askedBefore returns the time that another proxy of this host has written; the caller holds x.mu.
func (x *job) askedBefore(now time.Time) (asked time.Time) {
	info, err := os.Stat(filepath.Join(x.dir, askedFile))
	if err != nil {
		return time.Time{}
	}
	if asked = info.ModTime(); asked.After(now) {
		return now // the clock was set back
	}
	return asked
}

// owes reports whether a server of this host may owe a proxy an answer; the caller holds x.mu.
func (x *job) owes(now time.Time) bool { return now.Sub(x.asked) < owesFor }

// misleads returns an error for a message that must not go on over a connection that bypasses the
// mesh: an answer for a proxy, which nobody would keep from the worker.
func (c *requests) misleads(m *pslite.Meta) error {
	role, _, ok := pslite.Rank(c.sender)
	if c.linked || !ok || role != pslite.Server || m.Request || !isOwn(m) {
		return nil
	}
	return reason.Errorf(reason.Route, "server %d answered a proxy on a connection to %s that bypasses the proxy there; closing it to force a reconnect", c.sender, c.destination)
}
