package aggregate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// keptJob is a job's node table in Options.File. A job sends it once, and the proxy that replaces
// this one needs it to tell the job's connections. Fields may be added, but not renamed.
type keptJob struct {
	Scope     jobs.Scope `json:"scope"`
	Scheduler string     `json:"scheduler"`
	Nodes     []keptNode `json:"nodes"`
}

type keptNode struct {
	ID   int32  `json:"id"`
	Host string `json:"host"`
	Port int32  `json:"port"`
}

// maxKeptJobs bounds the jobs in the file; the oldest scopes' are left out.
const maxKeptJobs = 256

// load takes up the jobs that the proxy before this one knew. Without a good file there are none.
func (t *Table) load() {
	var all []keptJob
	switch err := jobs.ReadKept(t.opts.File, &all); {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		t.opts.Log.Warn("pushes of jobs that run are summed only when they connect again", "error", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(all) - 1; i >= 0; i-- { // the oldest first
		k := &all[i]
		m := pslite.Meta{Control: pslite.Control{Cmd: pslite.AddNode}}
		for _, n := range k.Nodes {
			m.Control.Nodes = append(m.Control.Nodes, pslite.Node{ID: n.ID, Hostname: n.Host, Port: n.Port})
		}
		if t.jobs[k.Scope] == nil {
			t.addScope(k.Scope)
		}
		t.jobs[k.Scope] = append(t.jobs[k.Scope], t.newJob(k.Scope, k.Scheduler, &m))
	}
}

// dirOf returns the directory of a job's files about sums; empty: it has none.
func (o *Options) dirOf(scope jobs.Scope, scheduler string) string {
	if o.File == "" {
		return ""
	}
	// A scheduler's name comes from the job.
	return filepath.Join(filepath.Dir(o.File), sumsDir, fmt.Sprintf("%d-%d-%016x", scope.Cgroup, scope.Netns, xxhash.Sum64String(scheduler)))
}

// sumsDir has a directory for each job with PS_RESEND, beside Options.File. The directories of the
// state directory that begin without a dot are those of the router's jobs.
const sumsDir = ".sums"

// Left reports whether proxies before this one have left files about sums beside Options.File. Then
// some of the repeated pushes of jobs with PS_RESEND may be in sums that have arrived.
func Left(file string) bool {
	dirs, _ := os.ReadDir(filepath.Join(filepath.Dir(file), sumsDir)) // as a rule it does not exist
	return len(dirs) > 0
}

// Forget removes these files. A proxy that does not see the pushes calls it, for what the files say is
// right only while each proxy keeps them up.
func Forget(file string) error {
	return os.RemoveAll(filepath.Join(filepath.Dir(file), sumsDir))
}

// clean removes the files about sums of jobs that are not known any more, and notes whether there are
// others.
func (t *Table) clean() {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := map[string]bool{}
	for _, all := range t.jobs {
		for _, j := range all {
			known[j.dir] = true
		}
	}
	dir := filepath.Join(filepath.Dir(t.opts.File), sumsDir)
	files, _ := os.ReadDir(dir) // as a rule it does not exist
	for _, f := range files {
		if path := filepath.Join(dir, f.Name()); !known[path] {
			os.RemoveAll(path)
			continue
		}
		t.inherits = true
	}
}

// save writes the jobs to the file.
func (t *Table) save() {
	if t.opts.File == "" {
		return
	}
	t.saving.Lock()
	defer t.saving.Unlock()
	if _, err := jobs.WriteKept(t.opts.File, t.kept()); err != nil {
		t.opts.Log.Warn("the next proxy will sum a job's pushes only when it connects again", "error", err)
	}
}

// kept returns the jobs, the youngest scopes' and jobs first.
func (t *Table) kept() (all []keptJob) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.scopes) - 1; i >= 0; i-- {
		of := t.jobs[t.scopes[i]]
		for n := len(of) - 1; n >= 0 && len(all) < maxKeptJobs; n-- {
			k := keptJob{Scope: t.scopes[i], Scheduler: of[n].scheduler}
			for _, node := range of[n].nodes.Nodes() {
				k.Nodes = append(k.Nodes, keptNode{node.ID, node.Hostname, node.Port})
			}
			all = append(all, k)
		}
	}
	return all
}
