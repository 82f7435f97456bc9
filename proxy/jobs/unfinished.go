package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// unfinished is what a proxy that ends in order leaves to the next one of a job
// that repeats nothing: requests under way, with the answers that have come, and
// messages that wait for a connection.
type unfinished struct {
	Requests map[int32][]route.Unfinished `json:"requests"` // by worker
	Up       []queued                     `json:"up"`
	Down     []queued                     `json:"down"`
}

// queued are messages from a worker to a server, or the reverse.
type queued struct {
	Worker   int32    `json:"worker"`
	Server   int32    `json:"server"`
	Messages [][]byte `json:"messages"`
}

// patience is how long a job that has left something unfinished counts as running
// without connections: its processes may need so long to make them again.
const patience = 10 * time.Second

func (x *job) unfinishedFile() string { return filepath.Join(x.dir, "unfinished.json") }

// leaveUnfinished writes what the next proxy must know. No connection is there
// any more.
func (x *job) leaveUnfinished() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.site == nil || x.gone || x.router.Resend() {
		return nil
	}
	left := unfinished{Requests: map[int32][]route.Unfinished{}, Down: queues(x.pendingDown)}
	for p, messages := range x.pendingUp {
		x.pendingUp[p] = slices.DeleteFunc(messages, func(m []byte) bool { return !x.lasts(p.worker, m) })
	}
	left.Up = queues(x.pendingUp)
	for _, id := range x.router.Workers() {
		if all := x.router.Unfinished(id); len(all) > 0 {
			left.Requests[id] = all
		}
	}
	if len(left.Requests)+len(left.Up)+len(left.Down) == 0 {
		return nil
	}
	_, err := writeKept(x.unfinishedFile(), left)
	if errors.Is(err, syscall.ENOSPC) && x.jobs.folder.giveReserve() == nil {
		_, err = writeKept(x.unfinishedFile(), left)
	}
	return err
}

// lasts reports whether a message to a server is still to go when this proxy has
// ended: those of moves are not, since where keys are is found out again.
func (x *job) lasts(worker int32, message []byte) bool {
	frames, err := cutMessage(message)
	if err != nil {
		return false
	}
	var m pslite.Message
	var d pslite.Detector
	if _, err := m.Decode(&d, frames); err != nil {
		return false
	}
	return x.router.Knows(worker, m.Meta.Timestamp)
}

func queues(pending map[pair][][]byte) (all []queued) {
	for p, messages := range pending {
		if len(messages) > 0 {
			all = append(all, queued{p.worker, p.server, messages})
		}
	}
	return all
}

// takeUnfinished takes up what the proxy before this one has left; the caller holds
// x.mu.
func (x *job) takeUnfinished() error {
	var left unfinished
	err := readKept(x.unfinishedFile(), &left)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		x.jobs.folder.setAside(x.unfinishedFile())
		return fmt.Errorf("%w; a job that repeats nothing may wait for them for ever: then end it and start it again", err)
	}
	// Once only: what a proxy after this one finds must be of this one.
	if err := os.Remove(x.unfinishedFile()); err != nil {
		return err
	}
	for id, all := range left.Requests {
		if err := x.router.Resume(id, all); err != nil {
			return err
		}
	}
	for _, q := range left.Up {
		say(x, x.up, x.pendingUp, pair{q.Worker, q.Server}, q.Messages...)
	}
	for _, q := range left.Down {
		say(x, x.down, x.pendingDown, pair{q.Worker, q.Server}, q.Messages...)
	}
	x.inUse = time.Now().Add(patience)
	x.jobs.log.Info("a job has left requests unfinished", "job", x.name, "workers", len(left.Requests), "waiting_for_servers", len(left.Up), "waiting_for_workers", len(left.Down))
	return nil
}
