package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
)

// reporting is a fleet as a planner shows it.
type reporting struct{ fleet }

func (r reporting) Agent() Agent {
	a := r.fleet.Agent()
	a.Hosts = []Host{{Host: "host-0", Lost: []Counter{}}, {Host: "host-1", Lost: []Counter{}}}
	return a
}

// aPlan has an epoch under way and one that came out a little worse than
// predicted, some keys refused.
func aPlan(job string) (Plan, error) {
	if job != fleetJob {
		return Plan{}, ErrNoJob
	}
	return Plan{
		Job: job, Strategy: "locality", Mode: "acts", DisplacedKeys: 2850, Proxies: 2,
		Epochs: []PlanEpoch{
			{Epoch: 2, State: "moving", Reason: "host-1 moves 812 bytes a step", Keys: 600, MovedKeys: 250, PendingKeys: 350,
				Hosts: []PlanHost{{Host: "host-0", Before: 700, Predicted: 500}, {Host: "host-1", Before: 812, Predicted: 500}}, Refused: []PlanRefusal{}},
			{Epoch: 1, State: "done", Reason: "host-0 moves 19217 bytes a step", Keys: 3000, MovedKeys: 2600, HeldP50: 0.0021,
				Hosts:   []PlanHost{{Host: "host-0", Before: 19217, Predicted: 2715, Actual: 2929}, {Host: "host-1", Before: 18000, Predicted: 2600, Actual: 2500}},
				Refused: []PlanRefusal{{Reason: "handler", Message: "server 1 neither adds nor assigns", Keys: 400, Example: 7}}},
		},
		Handlers: []PlanHandler{{Server: 0, Kind: "adds", Message: "pushes are added"}, {Server: 1, Kind: "opaque", Message: "neither adds nor assigns"}},
	}, nil
}

func TestPlanInterface(t *testing.T) {
	h := Handler(fleet{1, 1}, Options{Plan: aPlan})
	code, body := get(t, h, "/api/v1/plan?job="+fleetJob)
	var p Plan
	if err := json.Unmarshal([]byte(body), &p); code != http.StatusOK || err != nil || len(p.Epochs) != 2 || p.Epochs[1].Refused[0].Keys != 400 {
		t.Errorf("%d, %s, %v", code, body, err)
	}
	if code, body := get(t, h, "/api/v1/plan?job=x"); code != http.StatusNotFound {
		t.Errorf("a job without a plan: %d, %s", code, body)
	}
	if code, _ := get(t, Handler(fleet{1, 1}, Options{}), "/api/v1/plan?job="+fleetJob); code != http.StatusNotFound {
		t.Errorf("an agent's: %d", code)
	}
}

// The page shows the numbers of the plan.
func TestPageShowsThePlan(t *testing.T) {
	ctx := openPageWith(t, reporting{fleet{workers: 4, servers: 2}}, Options{Plan: aPlan})
	cells := func(id string) [][]string {
		return ask(t, ctx, chromedp.Evaluate[[][]string](fmt.Sprintf(
			`[...document.querySelectorAll("#%s tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent))`, id)))
	}
	for id, want := range map[string][][]string{
		"plan-hosts": {{"host-1", "812 B", "500 B", "–"}, {"host-0", "700 B", "500 B", "–"}},
		"plan-epochs": {
			{"2", "moving", "600", "250", "350", "812 B", "500 B", "–", "–", "host-1 moves 812 bytes a step"},
			{"1", "done", "3000", "2600", "–", "19.2 kB", "2.71 kB", "2.93 kB", "2.10 ms", "host-0 moves 19217 bytes a step"},
		},
		"plan-refused": {{"1", "400", "handler", "server 1 neither adds nor assigns"}},
	} {
		if got := cells(id); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s shows %q, want %q", id, got, want)
		}
	}
	facts := ask(t, ctx, chromedp.Evaluate[[]string](`[...document.querySelectorAll("#plan dd")].map((e) => e.textContent)`))
	want := []string{"locality; plans are carried out", "2850 keys are not at home", "epoch 2: 250 of 600 keys moved, 350 to go",
		"server 1: opaque, neither adds nor assigns"}
	if !slices.Equal(facts, want) {
		t.Errorf("the page says %q, want %q", facts, want)
	}
	if ask(t, ctx, chromedp.Evaluate[bool](`document.getElementById("plan-section").hidden`)) {
		t.Error("the plan is hidden")
	}
	screenshot(t, ctx, "plan")
}

// An agent's page has no plan, and does not ask for one.
func TestAgentsPageHasNoPlan(t *testing.T) {
	ctx := openPageWith(t, fleet{workers: 4, servers: 2}, Options{Plan: func(string) (Plan, error) {
		t.Error("the page of an agent asks for a plan")
		return Plan{}, ErrNoJob
	}})
	if !ask(t, ctx, chromedp.Evaluate[bool](`document.getElementById("plan-section").hidden`)) {
		t.Error("an empty plan is shown")
	}
}
