package fleet

import (
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

// shownEpochs is how many of a job's plans are shown, the newest.
const shownEpochs = 20

// Plan returns a job's plan as the page shows it, newest epoch first. Its mode is "held" if an
// operator's command keeps further plans back, else "acts" if plans are carried out unasked, else
// "proposes".
func Plan(p *api.JobPlan) page.Plan {
	shown := page.Plan{
		Job: p.GetJob(), Strategy: p.GetStrategy(), Mode: "proposes", Trouble: p.GetTrouble(), DisplacedKeys: p.GetDisplacedKeys(),
		Owned: p.GetOwned(), Epochs: []page.PlanEpoch{}, Handlers: []page.PlanHandler{}, Proxies: int(p.GetProxies()),
	}
	// That the store does not know the owners is more urgent than any other trouble.
	if p.GetLost() != "" {
		shown.Trouble = p.GetLost()
	}
	switch {
	case p.GetHeld():
		shown.Mode = "held"
	case p.GetActs():
		shown.Mode = "acts"
	}
	for _, e := range slices.Backward(p.GetEpochs()) {
		if len(shown.Epochs) == shownEpochs {
			break
		}
		shown.Epochs = append(shown.Epochs, epoch(e))
	}
	for _, h := range p.GetHandlers() {
		shown.Handlers = append(shown.Handlers, page.PlanHandler{
			Server: int(h.GetServer()), Kind: strings.ToLower(h.GetKind().String()), Message: h.GetMessage(),
		})
	}
	return shown
}

// epoch returns one plan as the page shows it.
func epoch(e *api.Epoch) page.PlanEpoch {
	shown := page.PlanEpoch{
		Epoch: e.GetEpoch(), State: strings.ReplaceAll(strings.ToLower(e.GetState().String()), "_", " "), Reason: e.GetReason(),
		Made: time.Unix(0, e.GetMadeUnixNanos()), Keys: e.GetKeys(), MovedKeys: e.GetMovedKeys(), MovedBytes: e.GetMovedBytes(),
		PendingKeys: e.GetPendingKeys(), Hosts: []page.PlanHost{}, Refused: []page.PlanRefusal{},
		HeldP50: quantile(e, 0.5), HeldP99: quantile(e, 0.99),
	}
	for _, h := range e.GetHosts() {
		shown.Hosts = append(shown.Hosts, page.PlanHost{Host: h.GetHost(), Before: h.GetBefore(), Predicted: h.GetPredicted(), Actual: h.GetActual(), LinkMbit: h.GetLinkMbit()})
	}
	for _, r := range e.GetRefused() {
		shown.Refused = append(shown.Refused, page.PlanRefusal{Reason: r.GetReason(), Message: r.GetMessage(), Keys: r.GetKeys(), Example: page.Key(r.GetExample())})
	}
	return shown
}

// quantile returns how long, in seconds, requests for the fraction q of the moved keys were held at
// most; 0 if no key has moved. Reports may have fewer durations than counts.
func quantile(e *api.Epoch, q float64) float64 {
	total, sum := uint64(0), uint64(0)
	for _, n := range e.GetHeldCount() {
		total += n
	}
	// Counts are of buckets in ascending order of duration; the bucket's upper limit is the answer.
	for i, n := range e.GetHeldCount() {
		if sum += n; float64(sum) >= q*float64(total) && total > 0 && i < len(e.GetHeldMicros()) {
			return float64(e.GetHeldMicros()[i]) / 1e6
		}
	}
	return 0
}
