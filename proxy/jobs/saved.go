package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// saved is what is kept of a job, in job.json of its folder.
type saved struct {
	Job   string        `json:"job"`
	Run   plan.Run      `json:"run,omitempty"`
	Nodes []pslite.Node `json:"nodes"`
	Local []int32       `json:"local"`
	// Displaced: keys may have been displaced; where they are others know.
	Displaced bool `json:"displaced"`
	// Store is the id of the planner's store by which they were.
	Store string `json:"store,omitempty"`
}

// save writes what must be known after a restart.
func (x *job) save() error {
	s := saved{Job: x.name, Run: x.run, Nodes: x.nodes.Nodes(), Displaced: x.displaced, Store: x.seen.store}
	for id := range x.local {
		s.Local = append(s.Local, id)
	}
	slices.Sort(s.Local)
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encoding a job: %w", err)
	}
	if err := os.MkdirAll(x.dir, 0o700); err != nil {
		return fmt.Errorf("making a job's folder: %w", err)
	}
	temporary := filepath.Join(x.dir, "job.json.new")
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		return fmt.Errorf("keeping a job: %w", err)
	}
	if err := os.Rename(temporary, filepath.Join(x.dir, "job.json")); err != nil {
		return fmt.Errorf("keeping a job: %w", err)
	}
	return nil
}

// forgetAfter is for how long what is kept of a job is of use when nobody has
// touched it.
const forgetAfter = 24 * time.Hour

// remember takes up the jobs that were kept.
func (j *Jobs) remember() error {
	files, err := filepath.Glob(filepath.Join(j.opts.Dir, "*", "job.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("looking for jobs: %w", err)
		}
		if time.Since(info.ModTime()) > forgetAfter {
			if err := os.RemoveAll(filepath.Dir(file)); err != nil {
				return fmt.Errorf("removing an old job: %w", err)
			}
			continue
		}
		if err := j.rememberJob(file); err != nil {
			return fmt.Errorf("%s: %w (remove its folder where the job has ended)", file, err)
		}
	}
	return nil
}

func (j *Jobs) rememberJob(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s saved
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	var t pslite.Table
	var m pslite.Meta
	m.Control.Cmd, m.Control.Nodes = pslite.AddNode, s.Nodes
	t.Learn(&m)
	servers, _ := t.Count()
	if servers == 0 || jobName(&t) != s.Job {
		return errors.New("it has no servers, or another scheduler")
	}
	x, err := j.newJob(s.Job, s.Run, t, servers)
	if err != nil {
		return err
	}
	x.dir, x.displaced, x.saved = filepath.Dir(file), s.Displaced, s.Store
	x.seen.store = s.Store
	for _, id := range s.Local {
		x.local[id] = true
	}
	if old := j.jobs[s.Job]; old != nil { // of another run; the later one counts
		if !later(x, old) {
			old = x
		}
		j.drop(old)
		if old == x {
			return nil
		}
	}
	j.jobs[s.Job] = x
	return x.resume()
}

// later reports whether a run that was kept began after another one of its job.
func later(a, b *job) bool {
	if a.run != b.run {
		return a.run > b.run
	}
	one, err := os.Stat(filepath.Join(a.dir, "job.json"))
	if err != nil {
		return false
	}
	other, err := os.Stat(filepath.Join(b.dir, "job.json"))
	return err != nil || !one.ModTime().Before(other.ModTime())
}

// resume takes a job up where another process was killed. Where keys may be
// displaced it must be told by others before anything passes.
func (x *job) resume() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.local {
		x.addWorker(id)
	}
	if err := x.takeUnfinished(); err != nil {
		x.jobs.log.Error("requests that the proxy before left under way are lost", "job", x.name, "error", err)
	}
	x.site = migrate.New(x.names()[0], x.router, uint64(time.Now().UnixNano()))
	x.site.SetOthers(x.otherNames())
	x.expected = patience
	x.takeJournal()
	if !x.displaced {
		x.router.Open(x.router.Table())
	} else {
		// At once: until then it would pass for one that knows. What cannot be
		// sent yet is said again.
		x.site.Join()
		x.carry()
	}
	x.jobs.log.Info("a job goes on", "job", x.name, "displaced", x.displaced)
	return nil
}
