//! Schedules of budgets: cron expressions with five fields, in UTC, as in Karpenter's NodePools.

use std::fmt;

use jiff::{SignedDuration, Timestamp, ToSpan, civil::Date, civil::DateTime, tz::TimeZone};

/// A schedule that does not fire within this many days never fires: 29 February comes every eight years at the worst.
const DAYS: usize = 9 * 366;

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    text: String,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// True if the field is `?` or starts with `*`. If neither the day of the month nor the weekday does, either one
    /// may match.
    any_day: bool,
    any_weekday: bool,
}

impl Schedule {
    pub fn read(text: &str) -> Result<Self, String> {
        let fields = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(format!(
                "{text:?} is no schedule: write five fields (minute, hour, day of month, month, day of week), for example \
                 \"0 8 * * 1-5\", or one of @hourly, @daily, @weekly, @monthly, @yearly"
            ));
        };
        let of = |field: &str, what: &'static str, low: u32, high: u32, names: &[&str]| {
            set(field, low, high, names).ok_or_else(|| {
                format!("{field:?} is no {what} of a schedule: write * or numbers from {low} to {high}, with - , and / between them")
            })
        };
        let weekdays_set = of(weekdays, "day of week", 0, 7, &WEEKDAYS)?;
        let schedule = Self {
            text: text.to_owned(),
            minutes: of(minutes, "minute", 0, 59, &[])?,
            hours: of(hours, "hour", 0, 23, &[])?,
            days: of(days, "day of month", 1, 31, &[])?,
            months: of(months, "month", 1, 12, &MONTHS)?,
            // Sunday is 0, and 7 is accepted too.
            weekdays: (weekdays_set | (weekdays_set >> 7)) & 0x7f,
            any_day: days.starts_with('*') || days == "?",
            any_weekday: weekdays.starts_with('*') || weekdays == "?",
        };
        if schedule.first_from(Timestamp::UNIX_EPOCH).is_none() {
            return Err(format!("{text:?} never comes up: no month of it has such a day"));
        }
        Ok(schedule)
    }

    fn has_day(&self, date: Date) -> bool {
        let has = |set: u64, number: i8| number >= 0 && set >> number & 1 == 1;
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        let fits = match (self.any_day, self.any_weekday) {
            (true, true) => true,
            (true, false) => weekday,
            (false, true) => day,
            (false, false) => day || weekday,
        };
        has(self.months, date.month()) && fits
    }

    /// The times of a day at which the schedule fires, in order.
    fn times(&self) -> impl DoubleEndedIterator<Item = (i8, i8)> + '_ {
        let of = |set: u64, number: i8| set >> number & 1 == 1;
        (0..24_i8).filter(move |hour| of(self.hours, *hour)).flat_map(move |hour| {
            (0..60_i8).filter(move |minute| of(self.minutes, *minute)).map(move |minute| (hour, minute))
        })
    }

    /// The first time at or after `from` at which the schedule fires.
    pub fn first_from(&self, from: Timestamp) -> Option<Timestamp> {
        let start = from.to_zoned(TimeZone::UTC).datetime();
        let mut date = start.date();
        for _ in 0..DAYS {
            if self.has_day(date) {
                let times = self.times().filter_map(|(hour, minute)| at(date, hour, minute));
                if let Some(found) = times.into_iter().find(|time| *time >= from) {
                    return Some(found);
                }
            }
            date = date.checked_add(1.day()).ok()?;
        }
        None
    }

    /// The last time at or before `until` at which the schedule fired.
    pub fn last_until(&self, until: Timestamp) -> Option<Timestamp> {
        let mut date = until.to_zoned(TimeZone::UTC).datetime().date();
        for _ in 0..DAYS {
            if self.has_day(date) {
                let times = self.times().rev().filter_map(|(hour, minute)| at(date, hour, minute));
                if let Some(found) = times.into_iter().find(|time| *time <= until) {
                    return Some(found);
                }
            }
            date = date.checked_sub(1.day()).ok()?;
        }
        None
    }

    /// Whether the schedule fired less than `duration` ago, and when that answer changes.
    pub fn is_active(&self, now: Timestamp, duration: SignedDuration) -> (bool, Option<Timestamp>) {
        let last = self.last_until(now).map(|last| crate::moments::after(last, duration));
        match last.filter(|end| now < *end) {
            Some(end) => (true, Some(end)),
            None => (false, self.first_from(now)),
        }
    }
}

fn at(date: Date, hour: i8, minute: i8) -> Option<Timestamp> {
    let time = DateTime::from_parts(date, jiff::civil::time(hour, minute, 0, 0));
    time.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The numbers of a field, as a bit set.
fn set(field: &str, low: u32, high: u32, names: &[&str]) -> Option<u64> {
    let number = |text: &str| -> Option<u32> {
        let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let number = match named {
            Some(place) => u32::try_from(place).ok()? + low,
            None if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok()?
            }
            None => return None,
        };
        (low..=high).contains(&number).then_some(number)
    };
    let mut all = 0_u64;
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step = step.parse::<u32>().ok().filter(|step| *step > 0)?;
                (range, Some(step))
            }
            None => (part, None),
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (low, high),
            Some((first, last)) => (number(first)?, number(last)?),
            // As in robfig/cron, 5/10 means every 10 from 5 to the end.
            None => (number(range)?, if step.is_some() { high } else { number(range)? }),
        };
        if first > last {
            return None;
        }
        let step = step.unwrap_or(1);
        (first..=last).step_by(usize::try_from(step).ok()?).for_each(|number| all |= 1 << number);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::cases;

    fn field(low: u32, high: u32) -> impl Strategy<Value = String> {
        let number = low..=high;
        prop_oneof![
            Just("*".to_owned()),
            number.clone().prop_map(|it| it.to_string()),
            (number.clone(), number.clone()).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
            (number.clone(), 1..90u32).prop_map(|(from, step)| format!("{from}/{step}")),
            (1..90u32).prop_map(|step| format!("*/{step}")),
            (number.clone(), number).prop_map(|(a, b)| format!("{a},{b}")),
        ]
    }

    fn moments() -> impl Strategy<Value = Timestamp> {
        let any =
            (-3_000_000_000i64..250_000_000_000).prop_map(|second| Timestamp::from_second(second).unwrap());
        prop_oneof![8 => any, 1 => Just(Timestamp::MIN), 1 => Just(Timestamp::MAX)]
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn any_text_is_a_schedule_or_is_refused_with_what_would_be_right(
            text in "\\PC{0,30}|@[a-z]{0,9}|([0-9*/,?-]{0,8} ){4}[0-9*/,A-Z-]{0,8}",
        ) {
            match Schedule::read(&text) {
                Ok(schedule) => prop_assert_eq!(schedule.to_string(), text),
                Err(error) => prop_assert!(error.contains("schedule") || error.contains("never comes up"), "{}", error),
            }
        }

        /// It comes up at or after any moment, and at no moment between.
        #[test]
        fn a_schedule_comes_up_in_order(
            text in (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7))
                .prop_map(|(a, b, c, d, e)| format!("{a} {b} {c} {d} {e}")),
            now in moments(),
            minutes in 0..100_000i64,
        ) {
            let Ok(schedule) = Schedule::read(&text) else { return Ok(()) };
            if let Some(first) = schedule.first_from(now) {
                prop_assert!(first >= now);
                prop_assert_eq!(schedule.last_until(first), Some(first));
                prop_assert_eq!(schedule.first_from(first), Some(first));
            }
            if let Some(last) = schedule.last_until(now) {
                prop_assert!(last <= now);
            }
            let (active, changes) = schedule.is_active(now, SignedDuration::from_mins(minutes));
            prop_assert!(!active || changes.is_some_and(|end| end > now), "{} {:?}", text, changes);
        }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn schedules_come_up_as_cron_says() {
        // 16 November 2026 is a Monday.
        let cases = [
            ("0 8 * * 1-5", "2026-11-16T07:59:59Z", "2026-11-16T08:00:00Z"),
            ("0 8 * * 1-5", "2026-11-16T08:00:00Z", "2026-11-16T08:00:00Z"),
            ("0 8 * * 1-5", "2026-11-20T08:00:01Z", "2026-11-23T08:00:00Z"),
            ("0 8 * * mon-FRI", "2026-11-20T08:00:01Z", "2026-11-23T08:00:00Z"),
            ("*/15 * * * *", "2026-11-16T08:01:00Z", "2026-11-16T08:15:00Z"),
            ("5/10 3 * * *", "2026-11-16T03:30:00Z", "2026-11-16T03:35:00Z"),
            ("0 0 29 2 *", "2026-11-16T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 1 * 0", "2026-11-16T00:00:00Z", "2026-11-22T00:00:00Z"),
            ("0 0 * * 7", "2026-11-16T00:00:00Z", "2026-11-22T00:00:00Z"),
            ("@hourly", "2026-11-16T08:01:00Z", "2026-11-16T09:00:00Z"),
            ("@weekly", "2026-11-16T00:00:00Z", "2026-11-22T00:00:00Z"),
            ("@monthly", "2026-11-16T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("@yearly", "2026-11-16T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("@daily", "2026-11-16T00:00:01Z", "2026-11-17T00:00:00Z"),
            ("30 6,18 * 1,JUL *", "2026-11-16T00:00:00Z", "2027-01-01T06:30:00Z"),
        ];
        for (text, from, expected) in cases {
            let schedule = Schedule::read(text).unwrap();
            assert_eq!(schedule.first_from(time(from)), Some(time(expected)), "{text} from {from}");
            let found = schedule.first_from(time(from)).unwrap();
            assert_eq!(schedule.last_until(found), Some(found), "{text}");
        }
    }

    #[test]
    fn a_window_is_open_for_its_duration() {
        let office = Schedule::read("0 8 * * 1-5").unwrap();
        let ten_hours = SignedDuration::from_hours(10);
        let cases = [
            ("2026-11-16T07:59:59Z", false, "2026-11-16T08:00:00Z"),
            ("2026-11-16T08:00:00Z", true, "2026-11-16T18:00:00Z"),
            ("2026-11-16T17:59:59Z", true, "2026-11-16T18:00:00Z"),
            ("2026-11-16T18:00:00Z", false, "2026-11-17T08:00:00Z"),
            ("2026-11-21T12:00:00Z", false, "2026-11-23T08:00:00Z"),
        ];
        for (now, active, changes) in cases {
            assert_eq!(office.is_active(time(now), ten_hours), (active, Some(time(changes))), "{now}");
        }
    }

    #[test]
    fn what_is_no_schedule_says_what_would_be_one() {
        for bad in [
            "",
            "* * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "a * * * *",
            "5-1 * * * *",
            "*/0 * * * *",
            "0 0 31 2 *",
            "1,,2 * * * *",
        ] {
            assert!(Schedule::read(bad).is_err(), "{bad:?}");
        }
        assert!(Schedule::read("* * * *").unwrap_err().contains("for example \"0 8 * * 1-5\""));
    }
}
