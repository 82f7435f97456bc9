package planner

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// dense is a State of one job, whose workers use all keys of one block in each step and one
// in a hundred of another.
type dense struct {
	page.State
	over  bool
	hosts []string // of each worker
}

const steps = 100

func (d *dense) Jobs() []page.Job {
	j := page.Job{Name: at1, State: page.Running}
	if d.over {
		j.State = page.Over
	}
	for i, host := range d.hosts {
		j.Nodes = append(j.Nodes, page.Node{Name: worker(i), Role: "worker", Host: host})
	}
	return []page.Job{j}
}

func (d *dense) Agent() page.Agent { return page.Agent{} }

func worker(i int) string { return "worker" + string(rune('0'+i)) }

func (d *dense) Heatmap(job string, q page.HeatmapQuery) (page.Heatmap, error) {
	h := page.Heatmap{Job: job, Blocks: []page.Block{page.NewBlock(0, 99, 100, false), page.NewBlock(1000, 1999, 1000, false)}}
	for i := range d.hosts {
		h.Workers = append(h.Workers, worker(i))
		row := []uint64{100 * steps, 10 * steps}
		if q.Measure == page.PushedBytes {
			row = []uint64{row[0] * 4, row[1] * 4}
		}
		h.Counts = append(h.Counts, row)
	}
	return h, nil
}

func (d *dense) Servers(string, page.Range) (s page.Servers, err error) {
	for i := range d.hosts {
		s.Workers = append(s.Workers, page.WorkerLoad{Name: worker(i), Steps: steps})
	}
	return s, nil
}

// Rules come when the same was found twice, and go with the job, or where nothing is saved
// any more.
func TestSumsByAlpha(t *testing.T) {
	rules := require.Value(NewCodecs(t.Context(), &store.Memory{}))(t)
	job := &dense{hosts: []string{"a", "a", "b", "b"}}
	s := summer{state: job, rules: rules, title: func(job string) string { return job }}
	const dense = `[{"keys":"0-99","form":"host","by":"planner"},{"form":"none","by":"planner"}]`
	look := func(when, want string) {
		t.Helper()
		s.updateRules(t.Context())
		d := require.Value(rules.Describe(t.Context(), &api.DescribeRulesRequest{}))(t)
		got := ""
		for _, j := range d.GetRules().GetSums() {
			got += j.GetRules()
		}
		if got != want {
			a, err := page.AlphaOf(job, at1, 64, nil)
			t.Errorf("%s: %s, want %s; %+v, %v", when, got, want, a, err)
		}
	}
	look("at first", "")
	look("again", dense)
	look("and again", dense)
	job.hosts = []string{"a", "b", "c", "d"}
	look("workers on hosts of their own", dense)
	look("again", "")
	job.hosts = []string{"a", "a", "b", "b"}
	look("back", "")
	look("again", dense)
	job.over = true
	look("over", "")
	require.Value(rules.SetSums(t.Context(), &api.JobRules{Job: at1, Rules: `[{"form":"none"}]`}))(t)
	job.over = false
	look("with a rule of somebody's", `[{"form":"none"}]`)
	look("again", `[{"form":"none"}]`)
}

// An evaluation gets a fiftieth of the time where it takes long, and comes again all the same.
func TestSumsAreEvaluatedRarelyWhereTheyTakeLong(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: sumsEvery,
		time.Second:      50 * time.Second,
		time.Minute:      sumsRarely,
	} {
		if got := sumsAfter(took); got != want {
			t.Errorf("after an evaluation of %v: the next after %v, want %v", took, got, want)
		}
	}
}
