pub(crate) fn push_library(s: &mut crate::lua::State<'_>) {
    s.push_table(0, 0);
}
