package page

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page/history"
)

func TestHistory(t *testing.T) {
	var log history.Log
	began := time.Unix(1_700_000_000, 0)
	for i := range 10 {
		from := began.Add(time.Duration(i) * history.Every)
		sums := history.Sums{Steps: 50, Bytes: 1000, Micros: []uint64{2000}, Counts: []uint64{40}, Busiest: 30, Mean: 20, Host: history.Host{CPU: 0.5}}
		log.Add(fleetJob, history.Point{From: from, To: from.Add(history.Every), Sums: sums})
	}
	h := Handler(fleet{workers: 2, servers: 1}, Options{History: func(job string, q HistoryQuery) (History, error) {
		return NewHistory(job, q, log.Of(job, q.From, q.To)), nil
	}})
	get := func(query string) (h2 History, code int) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/history"+query, nil))
		if err := json.Unmarshal(w.Body.Bytes(), &h2); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
		return h2, w.Code
	}
	all, code := get("")
	if code != 200 || all.Job != fleetJob || len(all.Points) != 10 {
		t.Fatalf("%d: %d points of %q, want 10 of the only job", code, len(all.Points), all.Job)
	}
	p := all.Points[3]
	if p.StepsPerSecond != 10 || p.BytesPerSecond != 200 || p.P50 != 0.002 || p.P99 != 0.002 || p.Requests != 40 || p.Skew != 1.5 || p.CPUPercent != 10 || p.SavedPerSecond != nil {
		t.Errorf("%+v", p)
	}
	if part, _ := get("?from=1700000010&to=1700000020"); len(part.Points) != 2 {
		t.Errorf("ten seconds have %d points, want 2", len(part.Points))
	}
	if some, _ := get("?workers=a,b&servers=c"); !slices.Equal(some.Workers, []string{"a", "b"}) || !slices.Equal(some.Servers, []string{"c"}) || some.Points[0].LeftHostPerSecond != nil {
		t.Errorf("of some: %+v", some)
	}
	if _, code := get("?from=yesterday"); code != 400 {
		t.Errorf("a wrong time: %d", code)
	}
}
