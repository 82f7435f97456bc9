package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// saved is the content of job.json in a job's folder.
type saved struct {
	Job   string        `json:"job"`
	Run   plan.Run      `json:"run,omitempty"`
	Nodes []pslite.Node `json:"nodes"`
	Local []int32       `json:"local"`
	// Displaced means that keys may have been displaced. The file does not say which: the other
	// hosts and the planner's store know, and must be asked.
	Displaced bool `json:"displaced"`
	// Store is the id of the planner's store that has the owners of keys.
	Store string `json:"store,omitempty"`
	// Scopes are those whose processes take part in the job.
	Scopes []Scope `json:"scopes,omitempty"`
	// App is the app whose keys move; nil: it is not known.
	App *int32 `json:"app,omitempty"`
	// Uses say how workers of this host have used keys, without the keys.
	Uses []route.Use `json:"uses,omitempty"`
}

// save writes job.json, and keeps in unkept why it could not; the caller holds x.mu or is the only
// one to know x.
func (x *job) save() error {
	s := saved{Job: x.name, Run: x.run, Nodes: x.nodes.Nodes(), Displaced: x.displaced, Store: x.seen.store}
	for id := range x.local {
		s.Local = append(s.Local, id)
	}
	slices.Sort(s.Local)
	app, uses := x.router.App(), x.router.UsesVersion()
	if app != pslite.Empty {
		s.App = &app
	}
	s.Uses = x.router.KnownUses()
	s.Scopes = slices.SortedFunc(maps.Keys(x.scopes), Scope.compare)
	// The copy comes first, so that it is never older than the file in whose place it is read. What
	// it has in advance after a kill in between is not in effect yet.
	if _, x.unkept = WriteKept(filepath.Join(x.dir, jobCopy), s); x.unkept != nil {
		return x.unkept
	}
	// The file asked is made together with job.json: later the disk may be full.
	if x.keptSize, x.unkept = WriteKept(filepath.Join(x.dir, jobFile), s); x.unkept == nil {
		x.savedApp, x.savedUses = app, uses
		x.unkept = x.makeAsked()
	}
	return x.unkept
}

// jobFile identifies the job of a folder. jobCopy is read where jobFile is damaged: without both
// nothing says which job a folder is of, and the connections of all unknown jobs must fail.
const (
	jobFile = "job.json"
	jobCopy = "job-copy.json"
)

// forgetAfter is how long the files of a job are kept that nothing touches.
const forgetAfter = 24 * time.Hour

// remember loads the jobs from the state folder. A damaged file affects only its own job.
func (j *Jobs) remember() error {
	folders, err := j.folder.jobs()
	if err != nil {
		return err
	}
	j.folder.empty.Store(len(folders) == 0 && len(j.folder.missing()) == 0)
	for _, path := range folders {
		if err := j.rememberJob(path); err != nil {
			j.folder.lose(path, err)
		}
	}
	return nil
}

// errNoName means that a folder has ledgers but no job.json.
var errNoName = errors.New(jobFile + " is not there")

// rememberJob loads the job that another proxy of this host has kept in a folder. A folder with
// ledgers but without job.json is an error, since nothing says whose requests they are. Of two runs
// in the same scopes the later one counts.
func (j *Jobs) rememberJob(folder string) error {
	s, t, err := j.readJob(folder)
	if errors.Is(err, fs.ErrNotExist) {
		// A folder is made before job.json is written, so an empty one is what a kill in between
		// leaves.
		left, err := pathsLike(folder, "worker-*")
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("%s: %w", folder, errNoName)
		}
		return os.RemoveAll(folder) // it never came to anything
	}
	if err != nil {
		return err
	}
	servers, _ := t.Count()
	x, err := j.newJob(s.Job, s.Run, t, servers)
	if x == nil {
		return err
	}
	if err != nil {
		x.failed = reason.Errorf(reason.State, "job %s: a proxy before this one had another placement for it: %w", s.Job, err)
		j.log.Error("requests of a job are refused", "job", s.Job, "error", x.failed)
	}
	// The folder's own name counts, whatever newJob would call it: it may have been made under a
	// name with a suffix.
	x.dir, x.displaced, x.saved, x.resumed = folder, s.Displaced, s.Store, true
	if x.displaced && x.failed == nil && j.opts.Planner == "" && j.opts.Placement == nil {
		x.failed = reason.Errorf(reason.State, "job %s: its keys are displaced, and nothing tells this proxy where they are: start it with --act and --planner, or --placement, as before, or restart the job", s.Job)
		j.log.Error("requests of a job are refused", "job", s.Job, "error", x.failed)
	}
	// Only the store's id is kept, and no version: the journal may have one.
	x.seen.store = s.Store
	if s.App != nil {
		x.router.MoveApp(*s.App)
	}
	x.router.TakeUses(s.Uses)
	x.savedApp, x.savedUses = x.router.App(), x.router.UsesVersion()
	for _, id := range s.Local {
		x.local[id] = true
	}
	x.joinScopes(s.Scopes)
	j.rememberScheduler(&t, s.Scopes)
	if old := j.sharing(x); old != nil { // of another run; the later one counts
		if !later(x, old) {
			old = x
		}
		j.drop(old)
		if old == x {
			return nil
		}
	}
	j.register(x)
	return x.resume()
}

// readJob reads job.json of a folder, or its copy if job.json is damaged or not there. The error is
// that of job.json; it wraps fs.ErrNotExist if there is neither.
func (j *Jobs) readJob(folder string) (s saved, t pslite.Table, err error) {
	file := filepath.Join(folder, jobFile)
	if s, t, err = readSaved(file); err == nil {
		return s, t, nil
	}
	copied, table, wrong := readSaved(filepath.Join(folder, jobCopy))
	if wrong != nil {
		return s, t, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		j.log.Warn("the state of a job is damaged; its copy is used", "job", copied.Job, "error", err)
		j.folder.setAside(file)
	}
	return copied, table, nil
}

// readSaved reads a file of job.save, and makes the node table of its nodes.
func readSaved(path string) (s saved, t pslite.Table, err error) {
	if err := ReadKept(path, &s); err != nil {
		return s, t, err
	}
	var m pslite.Meta
	m.Control.Cmd, m.Control.Nodes = pslite.AddNode, s.Nodes
	t.Learn(&m)
	if servers, _ := t.Count(); servers == 0 || jobName(&t) != s.Job {
		return s, t, fmt.Errorf("%s: %w: it has no servers, or another scheduler", path, errDamaged)
	}
	return s, t, nil
}

// rememberScheduler notes that processes of scopes have dialled the scheduler of a table. They are
// still connected to it, possibly bypassing this proxy, and the table of the next run at its
// address would be refused without this; see acceptTable.
func (j *Jobs) rememberScheduler(t *pslite.Table, scopes []Scope) {
	for _, n := range t.Nodes() {
		ip, err := netip.ParseAddr(n.Hostname)
		if n.ID != pslite.SchedulerID || err != nil {
			continue
		}
		for _, s := range scopes {
			j.noteDialled(s, netip.AddrPortFrom(ip.Unmap(), uint16(n.Port)))
		}
	}
}

// later reports whether run a began after run b of the same job. Names of runs are ordered by time.
func later(a, b *job) bool {
	if a.run != b.run {
		return a.run > b.run
	}
	one, err := os.Stat(filepath.Join(a.dir, jobFile))
	if err != nil {
		return false
	}
	other, err := os.Stat(filepath.Join(b.dir, jobFile))
	return err != nil || !one.ModTime().Before(other.ModTime())
}

// resume takes the job up where another proxy of this host was killed or has ended. Where keys may
// be displaced, the site joins: it learns their owners from other hosts and the planner before any
// request passes.
func (x *job) resume() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	// A ledger that is missing is damage now, where it is normal for a new worker.
	x.resuming = true
	for id := range x.local {
		x.addWorker(id)
	}
	x.resuming = false
	x.answered = x.takeAnswered()
	if err := x.takeUnfinished(); err != nil {
		x.jobs.log.Error("in-flight requests of the previous proxy are lost", "job", x.name, "error", err)
	}
	x.site = migrate.New(x.names()[0], x.router, uint64(time.Now().UnixNano()))
	x.site.SetOthers(x.otherNames())
	x.expected = patience
	x.asked = x.askedBefore(time.Now())
	x.router.SetCarried(false) // until all connections are back, and settled
	x.takeJournal()
	switch {
	case x.failed != nil: // closed it stays
	case !x.displaced:
		x.router.Open(x.router.Table())
	default:
		// At once: until then it would pass for one that knows. What cannot be
		// sent yet is repeated.
		x.site.Join()
		x.carry()
	}
	x.jobs.log.Info("job resumed", "job", x.name, "displaced", x.displaced)
	return nil
}
