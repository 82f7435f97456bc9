package cli

import "regexp"

// goisms are what Go's packages say in their own terms, with what it means to users.
var goisms = []struct {
	find    *regexp.Regexp
	replace string
}{
	{regexp.MustCompile(`yaml: unmarshal errors:\n +`), ""},
	{regexp.MustCompile(`\n +(line \d+: )`), "; $1"},
	{regexp.MustCompile(`field (\S+) not found in type \S+`), `unknown field "$1"`},
	{regexp.MustCompile(`cannot unmarshal !!(\w+)(?: (` + "`[^`]*`" + `))? into (?:\[\]|map)\S+`), "want a list or a map, not a $1 $2"},
	{regexp.MustCompile(`cannot unmarshal !!(\w+)(?: (` + "`[^`]*`" + `))? into \S+`), "unexpected $1 $2"},
	{regexp.MustCompile(`json: cannot unmarshal (\w+) into Go \S+(?: field (\S+))? of type \S+`), "unexpected $1 $2"},
	{regexp.MustCompile(`(Get|Put|Post|Delete) "[^"]*": `), ""},
	{regexp.MustCompile(`strconv\.Parse\w+: parsing `), ""},
	{regexp.MustCompile(` +(;|$)`), "$1"},
}

// Plainly returns an error's text without the names of Go types, functions and requests.
func Plainly(text string) string {
	for _, g := range goisms {
		text = g.find.ReplaceAllString(text, g.replace)
	}
	return text
}
