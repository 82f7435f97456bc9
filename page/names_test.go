package page

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Where keys have names, heatmap, hottest keys and plan have them beside the
// numbers, and the interface lists the names.
func TestNamesInTheInterface(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names.yaml")
	text := "- {name: users, first: 0, last: 999, keys-per-row: 10}\n- {name: items, first: 9223372036854775808, last: 9223372036854775907, keys-per-row: 1}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := OpenNames(path)
	if err != nil {
		t.Fatal(err)
	}
	plan := func(job string) (Plan, error) {
		return Plan{Job: job, Epochs: []PlanEpoch{{Refused: []PlanRefusal{{Example: 25}}}}}, nil
	}
	h := Handler(fleet{2, 1}, Options{Names: file, Plan: plan})
	for where, want := range map[string]string{
		"/api/v1/heatmap?first=0&last=1999&blocks=4&job=" + fleetJob: `"last_text":"499","name":"users[0..49]"`,
		"/api/v1/keys?n=3&job=" + fleetJob:                           `"key_text":"9223372036854775810","name":"items[2]"`,
		"/api/v1/plan?job=" + fleetJob:                               `"example_name":"users[2].5"`,
		"/api/v1/names":                                              `"first_text":"9223372036854775808"`,
	} {
		if code, body := get(t, h, where); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %s; want %s", where, code, body, want)
		}
	}
	_, body := get(t, Handler(fleet{2, 1}, Options{}), "/api/v1/names")
	var none Names
	if err := json.Unmarshal([]byte(body), &none); err != nil || none.Names == nil || len(none.Names) != 0 {
		t.Errorf("without a file: %s, %v", body, err)
	}
}

// Names are set where changes are taken, as YAML, CSV or what is told as JSON, and
// are what the page has from then on; what is wrong is said and sets nothing.
func TestNamesAreSet(t *testing.T) {
	file, err := OpenNames("")
	if err != nil {
		t.Fatal(err)
	}
	page, orders := Handler(fleet{2, 1}, Options{Names: file}), NamesControl(file)
	put := func(h http.Handler, media, body string, most int64) (int, string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPut, "/api/v1/names", strings.NewReader(body))
		r.Header.Set("Content-Type", media)
		r.Body = http.MaxBytesReader(w, r.Body, most)
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	const text = "- {name: users, first: 0, last: 999, keys-per-row: 10}"
	if code, _ := put(page, "", text, 1<<20); code != http.StatusMethodNotAllowed || len(file.Map().Ranges("")) > 0 {
		t.Errorf("at the page: %d", code)
	}
	for _, c := range []struct{ media, body, want string }{
		{"application/yaml", text, "users[0..49]"},
		{"text/csv; charset=utf-8", "name,first,last,keys-per-row\nitems,0,999,1\n", "items[0..499]"},
		{"application/json", `{"names":[{"name":"rows","first":0,"last":18446744073709551615,"keys_per_row":100,"last_text":"x"}]}`, "rows[0..4]"},
	} {
		code, told := put(orders, c.media, c.body, 1<<20)
		_, shown := get(t, page, "/api/v1/heatmap?first=0&last=1999&blocks=4&job="+fleetJob)
		if code != http.StatusOK || !strings.Contains(shown, `"name":"`+c.want+`"`) {
			t.Errorf("%s: %d, %s; the heatmap is %s", c.media, code, told, shown)
		}
		if _, read := get(t, page, "/api/v1/names"); read != told {
			t.Errorf("%s: told %s, read %s", c.media, told, read)
		}
		if again, _ := put(orders, "application/json", told, 1<<20); again != http.StatusOK {
			t.Errorf("%s: what is told cannot be set: %d", c.media, again)
		}
	}
	for _, c := range []struct {
		media, body string
		most        int64
		code        int
		want        string
	}{
		{"", "- {name: a, first: 0, last: 9}\n- {name: b, first: 9, last: 12}", 1 << 20, 400, "a and b overlap at key 9"},
		{"text/csv", "name,first,last\na,1,x\n", 1 << 20, 400, "line 2, last"},
		{"application/json", "{}", 1 << 20, 400, "want {"},
		{"application/json", `{"names":[],"more":1}`, 1 << 20, 400, "more"},
		{"", text, 10, 413, "too large"},
	} {
		var failed struct{ Error string }
		code, told := put(orders, c.media, c.body, c.most)
		if err := json.Unmarshal([]byte(told), &failed); err != nil || code != c.code || !strings.Contains(failed.Error, c.want) {
			t.Errorf("%s %q: %d, %s; want %d, %q", c.media, c.body, code, told, c.code, c.want)
		}
	}
	if got := file.Map().Key("", 3); got != "rows[0].3" {
		t.Errorf("key 3 is %q after what was refused", got)
	}
}
