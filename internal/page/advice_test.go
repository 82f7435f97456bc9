package page

import (
	"fmt"
	"testing"
)

// beyond is an agent's view of a job whose last two workers are on other hosts.
type beyond struct{ lived }

func (b beyond) Jobs() []Job {
	jobs := b.lived.Jobs()
	for i, name := range b.names("worker", b.workers) {
		jobs[0].Nodes = append(jobs[0].Nodes, Node{Name: name, Role: "worker", Rank: i, Local: i < b.workers-2})
	}
	return jobs
}

// The page begins with the heatmap, in which workers of other hosts are grey; it says what to do
// next, has comparisons folded until there is one, and says when something changed.
func TestPageSaysWhatToDo(t *testing.T) {
	l := newLived()
	ctx := openPageWith(t, beyond{l}, Options{History: l.History})
	for what, want := range map[string]string{
		`[...document.querySelectorAll("main > section")].find((s) => !s.hidden).id`:                                 "heat-section",
		`document.getElementById("elsewhere").textContent`:                                                           "2 workers are on other hosts, which this agent does not see. The planner's page has all of them: psidecar planner, and --planner of every agent.",
		`String(document.getElementById("compare").open)`:                                                            "false",
		`document.getElementById("advice").textContent`:                                                              "4 of 16 connections are not carried: no psidecar answers at the mesh port of host-3. Start psidecar up there. ",
		`[...document.querySelectorAll("#events li")].map((e) => e.textContent.replace(/^[0-9:]+ /, "")).join("; ")`: "goes on; stalled; threshold 0.99 on",
	} {
		until(t, ctx, what, fmt.Sprintf("(%s) === %q", what, want))
	}
	turn(t, ctx, "job", look(t, ctx, `document.getElementById("job").value`))
	turn(t, ctx, "beside", "worker")
	if open := look(t, ctx, `String(document.getElementById("compare").open)`); open != "true" {
		t.Error("what is compared is folded")
	}
}
