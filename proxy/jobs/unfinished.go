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

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// unfinished is the content of unfinished.json, which a proxy that ends in order leaves to the next
// one, of a job that repeats nothing: requests in flight, with the answers that have come, and
// messages that wait for a connection.
type unfinished struct {
	Requests map[int32][]route.Unfinished `json:"requests"` // by worker
	Up       []queued                     `json:"up"`
	Down     []queued                     `json:"down"`
}

// queued are messages of a worker for a server (Up), or the reverse (Down).
type queued struct {
	Worker   int32    `json:"worker"` // node id
	Server   int32    `json:"server"` // rank
	Messages [][]byte `json:"messages"`
}

// patience is how long a job that has left something unfinished counts as running without
// connections: its processes may need that long to connect again.
const patience = 10 * time.Second

func (x *job) unfinishedFile() string { return filepath.Join(x.dir, "unfinished.json") }

// leaveUnfinished writes what the next proxy must know. All connections have been closed by then,
// so what was queued on them is pending. On a full disk it gives up the reserve.
func (x *job) leaveUnfinished() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	// With PS_RESEND the processes repeat what is missing.
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
	// Nothing to leave, so the next proxy finds no file.
	if len(left.Requests)+len(left.Up)+len(left.Down) == 0 {
		return nil
	}
	_, err := WriteKept(x.unfinishedFile(), left)
	if errors.Is(err, syscall.ENOSPC) && x.jobs.folder.giveReserve() == nil {
		_, err = WriteKept(x.unfinishedFile(), left)
	}
	return err
}

// lasts reports whether a message for a server must still be sent when this proxy has ended. Those
// of moves must not: the next site decides its moves anew.
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

// queues converts pending messages.
func queues(pending map[pair][][]byte) (all []queued) {
	for p, messages := range pending {
		if len(messages) > 0 {
			all = append(all, queued{p.worker, p.server, messages})
		}
	}
	return all
}

// takeUnfinished takes up what another proxy of this host has left; the caller holds x.mu.
func (x *job) takeUnfinished() error {
	var left unfinished
	err := ReadKept(x.unfinishedFile(), &left)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		x.jobs.folder.setAside(x.unfinishedFile())
		return fmt.Errorf("%w; a job without PS_RESEND may wait for them forever: if so, restart it", err)
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
	// The job must not count as over before its processes are back.
	x.inUse = time.Now().Add(patience)
	x.jobs.log.Info("a job left unfinished requests", "job", x.name, "workers", len(left.Requests), "waiting_for_servers", len(left.Up), "waiting_for_workers", len(left.Down))
	return nil
}
