package health

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func (l *Loops) live(d time.Duration) {
	for ; d > 0; d -= step {
		l.pass(min(d, step))
	}
}

// A loop that does not turn for too long is named, and /healthz says so; one that
// rests, or has ended, is not.
func TestLateLoopsAreNamed(t *testing.T) {
	var l Loops
	quick, slow, waits, over := l.Add("quick", time.Second), l.Add("slow", time.Minute), l.Add("waits", time.Second), l.Add("over", time.Second)
	waits.Rest()
	over.End()
	ask := func() (int, string) {
		w := httptest.NewRecorder()
		l.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		return w.Code, w.Body.String()
	}
	l.live(time.Second)
	if code, body := ask(); code != http.StatusOK {
		t.Errorf("nobody is late: %d %s", code, body)
	}
	l.live(step)
	if code, body := ask(); code != http.StatusServiceUnavailable || !strings.Contains(body, "quick") || strings.Contains(body, "slow") || strings.Contains(body, "waits") || strings.Contains(body, "over") {
		t.Errorf("one is late: %d %s", code, body)
	}
	quick.Beat()
	slow.Beat()
	if code, body := ask(); code != http.StatusOK {
		t.Errorf("it turns again: %d %s", code, body)
	}
	waits.Beat()
	quick.Rest()
	l.live(2 * time.Second)
	if code, body := ask(); code != http.StatusServiceUnavailable || !strings.Contains(body, "waits") || strings.Contains(body, "quick") {
		t.Errorf("one got what it waited for, and is stuck since: %d %s", code, body)
	}
}

// A process that was stopped, or a machine that was suspended, makes no loop
// late.
func TestPausesDoNotCount(t *testing.T) {
	var l Loops
	l.Add("loop", 2*longestStep)
	l.pass(time.Hour)
	if err := l.Late(); err != nil {
		t.Errorf("after a pause: %v", err)
	}
	l.live(2 * longestStep)
	if err := l.Late(); err == nil {
		t.Error("a loop that is stuck after a pause is not late")
	}
}

// Time passes while Run runs.
func TestRunWatchesWhileTimePasses(t *testing.T) {
	var l Loops
	l.Add("loop", step)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go l.Run(ctx)
	for l.Late() == nil {
		select {
		case <-ctx.Done():
			t.Fatal("a loop that never turns is not late")
		case <-time.After(step):
		}
	}
}

// Without Loops nothing is counted, and nothing breaks.
func TestNoneOfNilLoopsIsCounted(t *testing.T) {
	var l *Loops
	b := l.Add("loop", time.Second)
	b.Beat()
	b.Rest()
	b.End()
	if err := l.Late(); err != nil {
		t.Error(err)
	}
}
