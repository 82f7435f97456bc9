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

	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/route"
)

// A connection made while a proxy is away goes direct, and stays so until it
// breaks. A request on such a connection is not routed; an answer to a request of
// the proxies' own, or to a part of one, reaches a worker that never asked: PS-lite
// takes its timestamp for a place in its tables. So
//   - nothing is asked in a worker's name, and no key moves, unless this proxy
//     carries all connections of its workers, both ways ([job.carried]);
//   - a host whose server was asked such a thing lately fails closed
//     ([job.noteOwn]);
//   - a server's proxy lets no answer to such a thing go past the mesh: it ends
//     the connection ([requests.misleads]), and the server, which makes another
//     that may be carried, says the answer again.

// isOwn reports whether a message's timestamp is none of the job's own.
func isOwn(m *pslite.Meta) bool {
	return m.Data() && m.Timestamp >= route.FirstOwn && m.Timestamp <= route.LastOwn
}

// carried returns nil if all connections between this host's workers and the
// servers, both ways, are carried by this proxy, and what went past it while it was
// away is settled; the caller holds x.mu.
func (x *job) carried() error {
	for _, worker := range x.router.Workers() {
		for rank := range int32(x.servers) {
			p := pair{worker, rank}
			up, down := x.up[p], x.down[p]
			switch {
			case up == nil || !up.open():
				x.backSince = time.Time{}
				return fmt.Errorf("the connection of worker %d to server %d does not come by this host's proxy", worker, pslite.ServerID(int(rank)))
			case down == nil || !down.open():
				x.backSince = time.Time{}
				return fmt.Errorf("the connection of server %d to worker %d does not come by both hosts' proxies", pslite.ServerID(int(rank)), worker)
			}
		}
	}
	if x.resumed && !x.settled {
		return x.settlePast(time.Now())
	}
	return nil
}

// settleFor is how long after all connections came back to a proxy that was away
// nothing moves: with PS_RESEND a worker says again what went past meanwhile and
// was not acknowledged, and only then is it known to be under way. It might be
// taken for new, and split, when its server has it already.
const settleFor = 3 * time.Second

var errSettling = errors.New("the connections of the job have just come back to this proxy")

// settlePast returns nil when that is over; the caller holds x.mu.
func (x *job) settlePast(now time.Time) error {
	if x.backSince.IsZero() {
		x.backSince = now
	}
	if x.settled = now.Sub(x.backSince) >= settleFor; !x.settled {
		return errSettling
	}
	return nil
}

// pastAfter is for how long connections may be missing, which their nodes make
// again, before they count as gone past.
const pastAfter = 10 * time.Second

// Where another host says that connections of its workers go past its proxy, a move
// is tried again, pastTries times in all: after pastPause first, since when a job
// begins they may only not be there yet, then after twice as long each time.
const (
	pastPause = 250 * time.Millisecond
	pastTries = 6
)

// mayAsk reports whether the servers may be asked in a worker's name, and keys be
// moved. Where that will not be, what was to be moved is refused; the caller holds
// x.mu.
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
			x.refuse(w, "past", err.Error()+": it was made while one was away, and stays as it is until it breaks", len(w.keys))
		}
		x.work = slices.Delete(x.work, 0, len(x.work))
	}
	x.pastSeen = now
	return false
}

// known reports whether the sites of all other workers know this run. One whose
// processes met the scheduler while their proxy was away may not. It would never be
// quiet, so that no move would end; and a proxy that is killed once keys may be
// displaced waits for its answer. So before anything is held each is asked what it
// holds, until it has said something. Where one says nothing for pastAfter, what was to
// be moved is refused; the caller holds x.mu.
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
			x.refuse(w, "past", fmt.Sprintf("the proxies at %s do not know this run: they were away, or could not be reached, when it began", strings.Join(silent, ", ")), len(w.keys))
		}
		x.work = slices.Delete(x.work, 0, len(x.work))
	}
	return false
}

// owesFor is for how long after a request of the proxies' own a server may still
// answer it. With PS_RESEND it says so again until that is acknowledged.
const owesFor = 10 * time.Second

// noteOwn notes that a server of this host is asked something by a proxy.
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

// askedFile was last changed when a proxy asked a server of this host something.
const askedFile = "asked"

// makeAsked makes the file when there is room for it, with a time long ago: where
// the disk is full later, its time can still be changed. The caller holds x.mu.
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

// keepAsked keeps when that was, for a proxy after this one, and says once where it
// cannot; the caller holds x.mu.
func (x *job) keepAsked(now time.Time) {
	err := os.Chtimes(filepath.Join(x.dir, askedFile), now, now)
	if err == nil || x.unkeptAsked {
		return
	}
	x.unkeptAsked = true
	x.jobs.log.Warn("that a server owes a proxy an answer would not be known after a kill of this proxy: connections made while it is away may go past it, and a worker get that answer", "job", x.name, "error", err)
}

// askedBefore returns when a proxy asked a server of this host something while a
// proxy before this one carried it; the caller holds x.mu.
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

// owes reports whether a server of this host may owe a proxy an answer; the caller
// holds x.mu.
func (x *job) owes(now time.Time) bool { return now.Sub(x.asked) < owesFor }

// misleads returns why a message must not go on over a connection that leads past
// the mesh: it is an answer for a proxy, and nobody would keep it from the worker.
func (c *requests) misleads(m *pslite.Meta) error {
	role, _, ok := pslite.Rank(c.sender)
	if c.linked || !ok || role != pslite.Server || m.Request || !isOwn(m) {
		return nil
	}
	return reason.Errorf(reason.Route, "an answer of server %d for a proxy, on a connection to %s that no proxy there carries: it is made anew", c.sender, c.destination)
}
