package jobs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/ledger"
)

// openLedger opens a worker's ledger; the caller holds x.mu. It always returns one: where the file
// cannot be used, in memory.
//
// A ledger that is lost has consequences only while keys are displaced: requests that come again
// would not be recognized, and parts of them be applied twice. The job's requests are refused then.
func (x *job) openLedger(id int32) *ledger.Ledger {
	path := filepath.Join(x.dir, fmt.Sprintf("worker-%d", id))
	o := ledger.Options{Worker: id, Servers: x.servers, Another: x.resumed, MustExist: x.resuming && x.displaced, Space: &x.jobs.folder.space}
	// Without job.json a ledger on disk would belong to no job, and make the folder a damaged one.
	if x.unkept != nil {
		return ledger.InMemory(path, o, x.unkept)
	}
	l, err := ledger.Open(path, o)
	if err == nil {
		return l
	}
	// Out of the way, so that a new one can be made in its place.
	if errors.Is(err, ledger.ErrDamaged) {
		x.jobs.folder.setAside(path)
	}
	if x.displaced {
		x.failed = reason.Errorf(reason.State, "job %s: the ledger of worker %d is lost while keys are displaced: its requests are refused, because retransmissions would count twice; restart the job: %w", x.name, id, err)
		x.jobs.log.Error("requests of a job are refused", "job", x.name, "error", x.failed)
		return ledger.InMemory(path, o, err)
	}
	x.jobs.log.Error("the ledger of a worker is lost; all keys are at home, so a new one is started", "job", x.name, "worker", id, "error", err)
	o.Another = true
	if l, err = ledger.Open(path, o); err != nil {
		return ledger.InMemory(path, o, err)
	}
	return l
}

// failUnkept refuses the requests of a job whose keys are placed from the start and which the next
// proxy would not know; the caller holds x.mu. That proxy would send requests to servers that do
// not have the keys.
func (x *job) failUnkept() {
	if x.unkept != nil && x.failed == nil && !x.router.Table().Empty() {
		x.failsUnkept = true
		x.failed = reason.Errorf(reason.State, "job %s: requests wait until the state directory is writable: the job's keys are placed, and this must survive a kill: %w", x.name, x.unkept)
	}
}

// checkEvery is the period at which files are checked.
const checkEvery = time.Second

// checkKept repeats writes that have failed, and logs when trouble begins and ends.
func (x *job) checkKept(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.gone || now.Sub(x.checked) < checkEvery {
		return
	}
	x.checked = now
	// A job that was refused only because it could not be written goes on once it is.
	if (x.unkept != nil || x.unwritten()) && x.save() == nil && x.failsUnkept {
		x.failed, x.failsUnkept = nil, false
	}
	if x.unkept == nil && x.failed == nil {
		for _, l := range x.ledgers {
			l.Check()
		}
	}
	x.touch(now)
	before := x.trouble
	x.trouble = ""
	if err := x.keptTrouble(); err != nil {
		x.trouble = err.Error()
	}
	switch {
	case x.trouble != "" && before == "":
		x.jobs.log.Warn("cannot write the state of a job: the job continues, but would not survive a kill of this proxy", "job", x.name, "error", x.trouble)
	case x.trouble == "" && before != "":
		x.jobs.log.Info("the state of a job can be written again", "job", x.name)
	}
}

// touch refreshes the time of the job's file while the job is used: a proxy that starts removes
// what is older than forgetAfter.
func (x *job) touch(now time.Time) {
	// Where servers run alone, only the connections of workers elsewhere are open.
	if !x.connected() && len(x.open) == 0 || now.Sub(x.touched) < forgetAfter/24 {
		return
	}
	x.touched = now
	if err := os.Chtimes(filepath.Join(x.dir, jobFile), now, now); err != nil {
		x.jobs.log.Debug("marking a job as in use", "job", x.name, "error", err)
	}
}

// unwritten reports whether somebody has removed or truncated the job's file.
func (x *job) unwritten() bool {
	info, err := os.Stat(filepath.Join(x.dir, jobFile))
	return err != nil || info.Size() != x.keptSize
}

// keptTrouble returns why the job would not survive a kill of this proxy, or nil; the caller holds
// x.mu.
func (x *job) keptTrouble() error {
	if x.failed != nil {
		return x.failed
	}
	if x.unkept != nil {
		return x.unkept
	}
	for _, l := range x.ledgers {
		if err := l.Trouble(); err != nil {
			return err
		}
	}
	return nil
}

// errLost returns why a worker's connection that belongs to no known job must fail, or nil: while
// any job is lost it could be of that one.
func (j *Jobs) errLost() error {
	for _, l := range j.folder.missing() {
		return reason.Errorf(reason.State, "a worker connects to a server of an unknown job while the state of a job is damaged: its keys may be displaced; stop the job and remove %s: %w", l.path, l.err)
	}
	return nil
}
