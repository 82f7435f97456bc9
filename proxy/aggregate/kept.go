package aggregate

import (
	"errors"
	"io/fs"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/jobs"
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
		t.jobs[k.Scope] = append(t.jobs[k.Scope], t.newJob(k.Scheduler, &m))
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
