package page

import (
	"reflect"
	"strings"
)

// withLists returns a copy of an answer in which nil lists are empty: in JSON an empty list is
// [], never null, so that clients need no special case. A nil list that is left out (omitzero)
// stays out. Lists without changes are shared with v. Maps and interfaces are left as they are.
func withLists(v any) any {
	if v == nil {
		return nil
	}
	from := reflect.ValueOf(v)
	to := reflect.New(from.Type()).Elem()
	to.Set(from)
	fillLists(to)
	return to.Interface()
}

// fillLists replaces nil lists in an addressable value. It copies what it changes, since the
// answer may share memory with the agent's state.
func fillLists(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || !hasLists(v.Type().Elem()) {
			return
		}
		to := reflect.New(v.Type().Elem())
		// A copy of the value behind the pointer, as others may read it at this moment.
		to.Elem().Set(v.Elem())
		fillLists(to.Elem())
		v.Set(to)
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Field(i)
			if !field.CanSet() || field.IsZero() && strings.Contains(v.Type().Field(i).Tag.Get("json"), ",omitzero") {
				continue
			}
			fillLists(field)
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
			return
		}
		if !hasLists(v.Type().Elem()) {
			return
		}
		to := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(to, v)
		for i := range to.Len() {
			fillLists(to.Index(i))
		}
		v.Set(to)
	}
}

// hasLists reports whether values of a type may contain lists.
func hasLists(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Struct, reflect.Slice:
		return true
	}
	return false
}
