package page

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/chromedp/chromedp"
)

// opening is a fleet that takes recordings: those that begin with "good".
type opening struct {
	lived
	mu   *sync.Mutex
	jobs *[]Job
}

func newOpening() opening {
	o := opening{newLived(), &sync.Mutex{}, &[]Job{}}
	o.empty = true
	return o
}

func (o opening) Jobs() []Job {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(*o.jobs)
}

func (o opening) Agent() Agent {
	a := o.lived.Agent()
	a.RecordingBytes, a.Hosts = 1<<20, nil
	return a
}

func (o opening) Open(name string, in io.Reader) ([]string, error) {
	text, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	if !strings.HasPrefix(string(text), "good") {
		return nil, errors.New("not a psidecar recording")
	}
	job := o.fleet.Jobs()[0]
	job.Name, job.State = name+" 10.0.0.1:9000", Over
	o.mu.Lock()
	defer o.mu.Unlock()
	*o.jobs = append(*o.jobs, job)
	return []string{job.Name}, nil
}

// A recording is posted; its faults are named.
func TestOpenRecording(t *testing.T) {
	state := newOpening()
	h := Handler(state, Options{Open: state.Open})
	long := strings.Repeat("x", 1<<20+1)
	for _, tc := range []struct {
		name, body string
		unsized    bool
		code       int
		want       string
	}{
		{name: "a/run.psr", body: "good", code: 200, want: `{"jobs":["run 10.0.0.1:9000"]}`},
		{name: "other.psr", body: "bad", code: 400, want: "other: not a psidecar recording"},
		{name: "", body: "bad", code: 400, want: "recording: not a psidecar recording"},
		{name: "\n\x00x.psr", body: "bad", code: 400, want: `"x: not a psidecar recording`},
		{name: "long.psr", body: long, code: 413, want: "exceeds the limit of 1 MiB"},
		{name: "long.psr", body: long, unsized: true, code: 413, want: "exceeds the limit of 1 MiB"},
	} {
		r := httptest.NewRequest("POST", recordingsPath, strings.NewReader(tc.body))
		q := r.URL.Query()
		q.Set("name", tc.name)
		r.URL.RawQuery = q.Encode()
		if tc.unsized {
			r.ContentLength = -1
		} else if tc.code == 413 {
			r.Body = io.NopCloser(iotest.ErrReader(errors.New("it is read though its length is known")))
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != tc.code || !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%q: %d %.200s, want %d with %s", tc.name, w.Code, w.Body, tc.code, tc.want)
		}
	}
	w := httptest.NewRecorder()
	if Handler(newLived(), Options{}).ServeHTTP(w, httptest.NewRequest("POST", recordingsPath, nil)); w.Code != http.StatusMethodNotAllowed && w.Code != http.StatusNotFound {
		t.Errorf("a page that opens none says %d", w.Code)
	}
}

// dropped drops files, named and with this text, on the page.
func dropped(files ...string) chromedp.Action[chromedp.Void] {
	var add strings.Builder
	for i := 0; i < len(files); i += 2 {
		fmt.Fprintf(&add, "t.items.add(new File([atob(%q)], %q));", base64.StdEncoding.EncodeToString([]byte(files[i+1])), files[i])
	}
	return chromedp.Evaluate[chromedp.Void](`(() => { const t = new DataTransfer(); ` + add.String() + `
		document.body.dispatchEvent(new DragEvent("dragover", {dataTransfer: t, bubbles: true, cancelable: true}));
		const taken = !document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: t, bubbles: true, cancelable: true}));
		return taken ? 0 : 1; })()`)
}

// Recordings are opened by dropping them on the page or by its button, the second one
// beside the first; what cannot be opened is said, and nothing else changes.
func TestPageOpensRecordings(t *testing.T) {
	state := newOpening()
	ctx := openPageWith(t, state, Options{History: state.History, Open: state.Open})
	message := `document.querySelector("#opening").textContent`
	says := func(what, text string) {
		t.Helper()
		until(t, ctx, what, fmt.Sprintf(`%s.includes(%q) && document.querySelector("#opening").classList.contains("bad")`, message, text))
	}
	if text := look(t, ctx, `document.querySelector("#empty").textContent`); !strings.Contains(text, "Drop recordings on this page") {
		t.Errorf("without a recording: %s", text)
	}
	screenshot(t, ctx, "no-recording")
	do(t, ctx, "drop another file", dropped("notes.txt", "other"))
	says("why it is not opened", "notes: not a psidecar recording")
	do(t, ctx, "drop one that is too long", dropped("long.psr", strings.Repeat("x", 1<<20+1)))
	says("why it is not opened", "exceeds the limit of 1.05 MB")
	do(t, ctx, "drop an empty one", dropped("empty.psr", ""))
	says("why it is not opened", "empty.psr is empty")

	do(t, ctx, "drop a recording", dropped("first.psr", "good"))
	until(t, ctx, "it to be shown", `document.querySelector("#job").value === "first 10.0.0.1:9000" && document.querySelector("#opening").hidden`)
	do(t, ctx, "choose another", chromedp.Evaluate[chromedp.Void](`(() => { const t = new DataTransfer(); t.items.add(new File(["good"], "second.psr"));
		const f = document.querySelector("#file"); f.files = t.files; f.dispatchEvent(new Event("change")); return 0; })()`))
	until(t, ctx, "both side by side", `document.querySelector("#side-a-title").textContent === "first 10.0.0.1:9000" && document.querySelector("#side-b-title").textContent === "second 10.0.0.1:9000" && !document.querySelector("#sides").hidden`)
	if job := viewed(t, ctx, "besidejob"); job != "second 10.0.0.1:9000" {
		t.Errorf("beside it in the address: %q", job)
	}
	screenshot(t, ctx, "recordings")
}

// Two that are dropped at once are shown side by side.
func TestPageOpensTwoRecordings(t *testing.T) {
	state := newOpening()
	ctx := openPageWith(t, state, Options{History: state.History, Open: state.Open})
	do(t, ctx, "drop two", dropped("a.psr", "good", "b.psr", "good"))
	until(t, ctx, "both side by side", `document.querySelector("#side-a-title").textContent === "a 10.0.0.1:9000" && document.querySelector("#side-b-title").textContent === "b 10.0.0.1:9000"`)
}

// The page of an agent opens none, and says how it is done beside its jobs.
func TestPageSaysWhereRecordingsAreOpened(t *testing.T) {
	ctx := openLived(t, newLived())
	do(t, ctx, "drop one", dropped("my run.psr", "good"))
	until(t, ctx, "what to do", `document.querySelector("#opening code")?.textContent === "psidecar show 'my run.psr' --live " + location.host`)
	if look(t, ctx, `String(document.querySelector("#open").hidden)`) != "true" {
		t.Error("it has a button for it")
	}
}
